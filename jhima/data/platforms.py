"""What conv_style in ScaleCUA's meta files says of a data set: kind, platform, and system turn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from jhima.prompts import WEB, Prompts

Kind = Literal["step", "click", "box", "chat", "unknown"]
CHATS, BOXES = ("internvl2_5", "internvl3", "chat"), ("internvl_grounding", "internvl_referring")
# The names in conv_style, and what the paper's Table 3 calls the platforms.
PLATFORMS = {
    **{"windows": "Windows", "macos": "macOS", "mac": "macOS", "ubuntu": "Linux"},
    **{"android": "Android", "mobile": "Mobile", "iphone": "iPhone", "ipad": "iPad"},
    **{"web": "Web", "mind2web": "Web", "desktop": "Desktop", "all": "All"},
}
# Where the agent is, if its system turn does not call this as Table 3 does.
_SCREENS = {
    **{"all": "graphical user interfaces", "mobile": "a phone", "desktop": "a desktop computer"},
    **{"web": "a web browser", "mind2web": "a web browser"},
    **{"iphone": "an iPhone", "ipad": "an iPad"},
}
_MOBILE = ("android", "mobile", "iphone", "ipad")
_DESKTOP = ("windows", "ubuntu", "mac", "macos", "desktop")

GENERIC = "You are a helpful assistant."  # what Qwen2.5-VL's chat template puts in by itself


@dataclass(frozen=True)
class Style:
    """step: one action of a trajectory; click: an action for an instruction; box: boxes and
    points; chat: no coordinates; unknown: a name that says none of these. thinks: replies begin
    with the model's thoughts."""

    kind: Kind
    platform: str = "all"
    thinks: bool = False


def read_style(name: str) -> Style:
    """A data set's style by its conv_style.

    >>> read_style("internvl2_5_ubuntu_planning_cot_v2")
    Style(kind='step', platform='ubuntu', thinks=True)
    >>> read_style("internvl_referring").kind, read_style("internvl2_5").kind
    ('box', 'chat')
    >>> read_style("internvl2_5_mobile_os_genesis").kind
    'unknown'
    """
    match = re.fullmatch(r"(?:internvl2_5_)?(\w+?)_(grounding|navigation|planning_cot)_v\d+", name)
    if match and match[1] in PLATFORMS:
        platform, task = match.groups()
        if task == "grounding":
            return Style("click", platform)
        return Style("step", platform, thinks=task == "planning_cot")
    if name in BOXES:
        return Style("box")
    return Style("chat" if name in CHATS else "unknown")


def where(style: Style) -> tuple[str, str]:
    """What fills {place} and {page} in the decomposer's prompt for a data set's trajectories.

    >>> where(Style("step", "windows"))
    ('on Windows', 'screen')
    """
    if style.platform in ("web", "mind2web"):
        return WEB
    preposition = "in" if style.platform == "all" else "on"
    return f"{preposition} {_screen(style)}", "screen"


def _screen(style: Style) -> str:
    return _SCREENS.get(style.platform, PLATFORMS[style.platform])


def system_turn(style: Style, prompts: Prompts) -> str:
    """The system turn that ScaleCUA leaves out of its samples.

    It gives the role, the platform's actions and the form of a reply. Web steps without thoughts
    get the very prompt that the actor has in the browser, boxes and chats Qwen's own.
    """
    if style.kind in ("box", "chat"):
        return GENERIC
    if style == Style("step", "web"):
        return prompts.actor_system
    screen = _screen(style)
    if style.kind == "click":
        role = f"You find what an instruction names in a screenshot of {screen}, and act on it."
        form = ""
    else:
        role = (
            f"You are an autonomous agent that completes tasks in {screen} by looking at "
            "screenshots."
        )
        form = "<operation>\nthe next step in a few words\n</operation>\n"
    if style.thinks:
        form = "<think>\nwhat the screenshot shows, and what follows from it\n</think>\n" + form
    return (
        f"{role}\n\n## Action space\n{_actions(style.platform)}\n\n"
        "Coordinates are pixels of the screenshot.\n\n"
        f"## Output format\n{form}<action>\none call, or several on lines of their own\n</action>"
    )


def _actions(platform: str) -> str:
    """The actions of a platform, as its system turn lists them."""
    if platform == "mind2web":
        return "click(x, y), write(message), select_option(x, y, value)"
    lines = ["click(x, y, clicks=1, button='left'), write(message), wait(seconds=3), call_user()"]
    if platform == "web" or platform in _DESKTOP:
        lines.append(
            "doubleClick(x, y), rightClick(x, y), moveTo(x, y), dragTo(x, y), "
            "press(keys, presses=1), hotkey('ctrl', 'c'), keyDown(key), keyUp(key)"
        )
    if platform in _DESKTOP:
        lines.append("scroll(clicks, x, y): down where clicks is negative")
    if platform == "web" or platform in _MOBILE:
        lines.append(
            "swipe(from_coord=[x, y], to_coord=[x, y], direction='up', amount=0.5): "
            "'up' shows what is further down"
        )
    if platform == "web":
        lines.append("open_url(url), go_backward(), go_forward()")
    if platform in _MOBILE:
        lines.append(
            "long_press(x, y, duration), open_app(app_name), navigate_home(), navigate_back()"
        )
    lines.append("response(answer), terminate(status='success' or 'failure', info='')")
    return "\n".join(lines)
