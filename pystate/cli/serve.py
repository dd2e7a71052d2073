"""The command ``serve``: the state of jobs over HTTP."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from pystate.cli.screen import say
from pystate.maintenance.access import open_existing

Locations = Annotated[
    list[str],
    typer.Argument(
        metavar="CHECKPOINT...",
        help="Folders or URLs of checkpoints or savepoints. The last part of one is the name of "
        "its job, or NAME in NAME=CHECKPOINT.",
    ),
]


def serve(
    locations: Locations,
    host: Annotated[
        str, typer.Option(help="The address to listen at; any but this machine's needs a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 is any that is free.")
    ] = 8765,
    token_file: Annotated[
        str | None,
        typer.Option(help="A file with the token that clients have to know; only yours to read."),
    ] = None,
    cert: Annotated[str | None, typer.Option(help="A certificate in PEM: HTTPS.")] = None,
    key: Annotated[str | None, typer.Option(help="The private key of --cert.")] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name of this server by which it may be called; may be repeated."),
    ] = None,
    cache: Annotated[
        int, typer.Option(min=0, help="Memory for the files of each job, in MiB.")
    ] = 64,
    threads: Annotated[
        int, typer.Option(min=1, max=256, help="Look-ups that are carried out at a time.")
    ] = 8,
    requests: Annotated[
        int, typer.Option(min=1, help="Requests under way; more are refused.")
    ] = 256,
    streams: Annotated[
        int, typer.Option(min=1, help="Scans and results of SQL that are read at a time.")
    ] = 8,
    keys: Annotated[int, typer.Option(min=1, help="The most keys in a request.")] = 100_000,
    body: Annotated[int, typer.Option(min=1, help="The largest body of a request, in MiB.")] = 16,
    rows: Annotated[int, typer.Option(min=1, help="The most rows in an answer.")] = 100_000_000,
    seconds: Annotated[
        int, typer.Option(min=1, help="The longest time of a look-up; a scan has 20 times that.")
    ] = 30,
) -> None:
    """Answer questions about state over HTTP, until it is stopped.

    Ctrl-C and SIGTERM do that. The jobs may run meanwhile, and are not touched. Without
    --token-file only programs of this machine reach the server. /openapi.json describes what it
    answers.

    Example: pystate serve /data/flights
    """
    from pystate.serve.jobs import named_locations
    from pystate.serve.limits import Limits
    from pystate.serve.server import ServeOptions, Server

    limits = replace(
        Limits(),
        requests=requests,
        threads=threads,
        streams=streams,
        keys=keys,
        body_bytes=body << 20,
        rows=rows,
        seconds=seconds,
        stream_seconds=20 * seconds,
    )
    options = ServeOptions(
        host=host,
        port=port,
        token_file=token_file,
        cert=cert,
        key=key,
        allow_hosts=tuple(allow_host or ()),
        cache_bytes=cache << 20,
        limits=limits,
    )
    named = named_locations(locations)
    for location in named.values():
        open_existing(location, "serve")
    server = Server(named, options)

    def begun() -> None:
        say(f"Serving {', '.join(named)} at {server.url}")
        if server.is_in_the_open:
            typer.echo(
                "pystate: what clients send and get, the token, too, can be read on its way: "
                "--cert and --key give HTTPS",
                err=True,
            )

    server.run(begun)
