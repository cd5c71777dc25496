"""The rights that a route asks of its callers."""

import enum


class Needs(enum.Enum):
    """The users who may call a route. With `{vhost}` in its path, the virtual host has to exist,
    too, and the user needs permissions in it, unless it is an administrator.
    """

    NOTHING = "no login"
    MANAGEMENT = "any tag"
    VHOST = "any tag, and permissions in the virtual host"
    POLICYMAKER = "the tag policymaker, and permissions in the virtual host"
    MONITORING = "the tag monitoring"
    ADMINISTRATOR = "the tag administrator"
