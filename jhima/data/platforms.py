"""conv_style: what ScaleCUA's meta files say of a data set: its kind, its platform, and so its system turn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from jhima.prompts import Prompts

Kind = Literal["step", "click", "box", "chat"]
# Names in conv_style, as the paper's Table 3 calls the platforms.
PLATFORMS = {
    "windows": "Windows",
    "macos": "macOS",
    "mac": "macOS",
    "ubuntu": "Linux",
    "android": "Android",
    "mobile": "Mobile",
    "iphone": "iPhone",
    "ipad": "iPad",
    "web": "Web",
    "mind2web": "Web",
    "desktop": "Desktop",
    "all": "All",
}


_MOBILE = ("android", "mobile", "iphone", "ipad")


GENERIC = "You are a helpful assistant."  # what Qwen2.5-VL's chat template puts in by itself


_EVERY = "click(x, y, clicks=1, button='left'), write(message), wait(seconds=3), call_user()"


_DESKTOP_AND_WEB = (
    "doubleClick(x, y), rightClick(x, y), moveTo(x, y), dragTo(x, y), press(keys, presses=1), "
    "hotkey('ctrl', 'c'), keyDown(key), keyUp(key)"
)


_SWIPE = "swipe(from_coord=[x, y], to_coord=[x, y], direction='up', amount=0.5): 'up' shows what is further down"


_LAST = "response(answer), terminate(status='success' or 'failure', info='')"


@dataclass(frozen=True)
class Style:
    """step: one action of a trajectory; click: an action for an instruction; box: boxes and points; chat: the rest."""

    kind: Kind
    platform: str = "all"
    thinks: bool = False


def read_style(name: str) -> Style:
    """A data set's style by its conv_style.

    >>> read_style("internvl2_5_ubuntu_planning_cot_v2")
    Style(kind='step', platform='ubuntu', thinks=True)
    >>> read_style("internvl_referring").kind, read_style("internvl2_5").kind
    ('box', 'chat')
    """
    found = re.fullmatch(r"(?:internvl2_5_)?(\w+?)_(grounding|navigation|planning_cot)_v\d+", name)
    if found and found[1] in PLATFORMS:
        return Style(
            "click" if found[2] == "grounding" else "step", found[1], found[2] == "planning_cot"
        )
    return Style("box" if name in ("internvl_grounding", "internvl_referring") else "chat")


def system_turn(style: Style, prompts: Prompts) -> str:
    """The system turn that ScaleCUA leaves out of its samples: role, the platform's actions, and the reply's form.

    Web steps without thoughts get the very prompt that the actor has in the browser. Boxes and chats get Qwen's own.
    """
    if style.kind in ("box", "chat"):
        return GENERIC
    if style == Style("step", "web"):
        return prompts.actor_system
    p = style.platform
    if p == "mind2web":
        actions = ["click(x, y), write(message), select_option(x, y, value)"]
    else:
        actions = [_EVERY]
        if p not in ("all", *_MOBILE):
            actions.append(_DESKTOP_AND_WEB)
        if p in ("windows", "ubuntu", "mac", "macos", "desktop"):
            actions.append("scroll(clicks, x, y): down where clicks is negative")
        if p in ("web", *_MOBILE):
            actions.append(_SWIPE)
        if p == "web":
            actions.append("open_url(url), go_backward(), go_forward()")
        if p in _MOBILE:
            actions.append(
                "long_press(x, y, duration), open_app(app_name), navigate_home(), navigate_back()"
            )
        actions.append(_LAST)
    where = {
        "All": "graphical user interfaces",
        "Web": "a web browser",
        "Mobile": "a phone",
        "Desktop": "a desktop computer",
        "iPhone": "an iPhone",
        "iPad": "an iPad",
    }.get(PLATFORMS[p], PLATFORMS[p])
    if style.kind == "click":
        role, form = (
            f"You find what an instruction names in a screenshot of {where}, and act on it.",
            "",
        )
    else:
        role = f"You are an autonomous agent that completes tasks in {where} by looking at screenshots."
        form = "<operation>\nthe next step in a few words\n</operation>\n"
        if style.thinks:
            form = "<think>\nwhat the screenshot shows, and what follows from it\n</think>\n" + form
    return (
        f"{role}\n\n## Action space\n"
        + "\n".join(actions)
        + "\n\nCoordinates are pixels of the screenshot.\n\n"
        f"## Output format\n{form}<action>\none call, or several on lines of their own\n</action>"
    )
