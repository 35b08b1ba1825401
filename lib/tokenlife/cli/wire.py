"""``tokenlife wire``: what one message puts on a link."""

import argparse

from tokenlife.cli import Result
from tokenlife.units import parse_bytes, parse_rate
from tokenlife.wire.framing import FramingError
from tokenlife.wire.physical import line_bits, line_code
from tokenlife.wire.stack import TRANSPORTS, Stack

HELP = "cut a message into packets: headers by layer, bytes and bits on the wire, goodput"
EXTRAS = {
    "vlan": "with a VLAN tag",
    "ipv6": "over IPv6",
    "vxlan": "inside VXLAN",
    "macsec": "under MACsec",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--bytes", required=True, help="the message: 4MiB")
    parser.add_argument("--transport", required=True, help=", ".join(TRANSPORTS))
    parser.add_argument(
        "--mtu", required=True, type=int, help="IP packet (tcp), payload per packet (rocev2, ib)"
    )
    parser.add_argument("--rate", help="of an Ethernet link, for its coded bits: 400Gbps")
    for name, text in EXTRAS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)


def run(args: argparse.Namespace) -> Result:
    """Count and print.

    Raises
    ------
    TokenlifeError
        If the size, the transport, the MTU or the options cannot be.
    """
    extras = {name: getattr(args, name) for name in EXTRAS}
    stack, size = Stack(args.transport, args.mtu, **extras), parse_bytes(args.bytes)
    framing = stack.frame(size)
    data = {
        "transport": args.transport,
        "mtu": args.mtu,
        "packets": framing.packets,
        "payload_bytes": framing.payload_bytes,
        "header_bytes": framing.header_bytes,
        "padding_bytes": framing.padding_bytes,
        "preamble_and_gap_bytes": framing.silent_bytes,
        "wire_bytes": framing.wire_bytes,
        "goodput_ratio": framing.goodput_ratio,
        "acknowledgements": framing.acknowledgements,
        "acknowledgement_wire_bytes": framing.acknowledgement_bytes
        + framing.acknowledgement_silent_bytes,
        "label": "modelled",
    }
    rows = [("payload", size), *framing.header_bytes.items()]
    rows += [("padding", framing.padding_bytes), ("preamble and gap", framing.silent_bytes)]
    lines = [f"modelled: {size:,} bytes by {args.transport}, MTU {args.mtu}"]
    lines += [f"{name:<24}{count:>20,} bytes" for name, count in rows if count]
    lines += [
        f"{'on the wire':<24}{framing.wire_bytes:>20,} bytes in {framing.packets:,} packets",
        f"{'goodput':<24}{framing.goodput_ratio:>20.2%}",
        f"{'acknowledgements':<24}{data['acknowledgement_wire_bytes']:>20,} bytes the other way, "
        f"in {framing.acknowledgements:,} packets",
    ]
    if args.rate:
        if args.transport == "ib":
            raise FramingError("--rate names an Ethernet link; InfiniBand codes its own way")
        rate_bps = parse_rate(args.rate)
        data["line_code"] = line_code(rate_bps).name
        data["line_bits"] = float(line_bits(framing.wire_bytes, rate_bps))
        data["line_rate_bps"] = float(rate_bps * line_code(rate_bps).expansion)
        lines.append(f"{data['line_code']:<24}{data['line_bits']:>20,.0f} bits on the line")
    return Result(data, "\n".join(lines))
