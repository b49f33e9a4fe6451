"""``oar policy``: tools around owners' files, none of which needs a running proxy."""
