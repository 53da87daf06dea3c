"""A Ray Serve application: the routes of `kiln serve`, behind which engines run on several machines."""

from kiln._ray_serve.application import app

__all__ = ["app"]
