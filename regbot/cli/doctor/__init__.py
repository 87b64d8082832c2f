"""``regbot doctor``: report what this machine supports."""
