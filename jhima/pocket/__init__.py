"""The pocket arena: five small web sites that stand in for WebArena's on any machine.

`python -m jhima.pocket --help` lists the commands.
"""

SITES = ("shopping", "shopping_admin", "reddit", "gitlab", "map")
