"""A server of live state: the checkpoints of jobs, asked over HTTP; the extra `serve`.

* `json_form` of `pystate.query` says how values are written in JSON;
* `limits`, `auth`, `problems`: what a client gets at most, who is one, and how errors are told;
* `jobs`: checkpoints that are open, and which epoch a request reads;
* `operations`: what a route is; `state_routes`, `change_routes`: the routes, and `answers` how they
  answer;
* `openapi`: the description of all routes, made of what they say of themselves;
* `app`: all of it as an ASGI application; `server`: what runs it, `protocol` its connections.

Nothing here is imported by `import pystate`.
"""

from __future__ import annotations

from pystate.base.installation import extra, require_own_package
from pystate.errors import MissingPackageError

require_own_package()
try:
    import httptools  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise MissingPackageError(
        f"pystate.serve needs starlette, uvicorn and httptools ({error}): {extra('serve')}"
    ) from error
