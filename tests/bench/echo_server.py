"""The yardstick: a bare grpc.aio server on uvloop that sends back what it gets.

    python -m tests.bench.echo_server --port-file FILE

No validation, no state, no log: what a unary call costs whatever a service does with it.
"""

import argparse
import asyncio
import gc
import json
import signal
from pathlib import Path

import grpc
import uvloop

from fairsched.v1 import scheduler_service_pb2 as pb

SERVICE = "fairsched.bench.EchoService"


async def echo(request, _context):
    """Sends the request back."""
    return request


async def echo_session(_first, context):
    """Sends each message back."""
    read, write, end = context.read, context.write, grpc.aio.EOF
    while (message := await read()) is not end:
        await write(message)


async def serve(port_file: Path) -> None:
    """Serves until SIGTERM."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    one, many = pb.EnqueueRequest, pb.BatchEnqueueRequest
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo, one.FromString, one.SerializeToString),
        "EchoSession": grpc.stream_stream_rpc_method_handler(
            echo_session, many.FromString, many.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    gc.freeze()
    port_file.with_suffix(".part").write_text(json.dumps({"port": port}))
    port_file.with_suffix(".part").rename(port_file)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port-file", type=Path, required=True)
    uvloop.run(serve(parser.parse_args().port_file))
