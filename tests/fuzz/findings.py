"""What a campaign looks for."""


class Finding(Exception):
    """A case that ended as none may."""


class Hang(BaseException):
    """A case that took too long; no library takes it for an error of its own."""
