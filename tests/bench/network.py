"""The flow model beside packet simulations of the same flows in ns-3.

Runs where ``import ns`` works (the ``ns3`` wheel, in an environment of its own) and prints what
ns-3 finds, as JSON; ``--record`` reads such a file, adds what the model says, and keeps both under
data/results/. Nothing is installed here.

    python tests/bench/network.py > packets.json          # beside ns-3
    python tests/bench/network.py --record packets.json   # beside tokenlife
"""

import json
import sys
import time

RATE_BPS, DELAY_US, SEGMENT = 100_000_000, 10, 1448
HEADERS = 2 + 20 + 32  # point-to-point, IPv4, TCP with timestamps
# Hosts on the left of two switches send to hosts on the right; (from, to, bytes).
CASES = {
    "one flow": [(0, 4, 5_000_000)],
    "incast of 2": [(0, 4, 4_000_000), (1, 4, 4_000_000)],
    "incast of 4": [(h, 4, 3_000_000) for h in range(4)],
    "dumbbell, 4 pairs": [(h, 4 + h, 3_000_000) for h in range(4)],
    "dumbbell, 1 : 2 : 4": [(0, 4, 1_500_000), (1, 5, 3_000_000), (2, 6, 6_000_000)],
}


def packets(flows) -> dict:
    """Simulate flows packet by packet over TCP."""
    from ns import ns

    ns.Config.SetDefault("ns3::TcpSocket::SegmentSize", ns.UintegerValue(SEGMENT))
    for end in ("SndBufSize", "RcvBufSize"):
        ns.Config.SetDefault(f"ns3::TcpSocket::{end}", ns.UintegerValue(4_000_000))
    nodes = ns.NodeContainer()
    nodes.Create(10)
    ns.InternetStackHelper().Install(nodes)
    link = ns.PointToPointHelper()
    link.SetDeviceAttribute("DataRate", ns.StringValue(f"{RATE_BPS}bps"))
    link.SetChannelAttribute("Delay", ns.StringValue(f"{DELAY_US}us"))
    addresses, of = ns.Ipv4AddressHelper(), {}
    ends = [(h, 8 if h < 4 else 9) for h in range(8)] + [(8, 9)]
    for number, (a, b) in enumerate(ends):
        pair = ns.NodeContainer()
        pair.Add(nodes.Get(a))
        pair.Add(nodes.Get(b))
        addresses.SetBase(ns.Ipv4Address(f"10.1.{number}.0"), ns.Ipv4Mask("255.255.255.0"))
        of[a] = addresses.Assign(link.Install(pair)).GetAddress(0)
    ns.Ipv4GlobalRoutingHelper.PopulateRoutingTables()
    for number, (src, dst, size) in enumerate(flows):
        port = 5000 + number
        to = ns.InetSocketAddress(of[dst], port).ConvertTo()
        any_ = ns.InetSocketAddress(ns.Ipv4Address.GetAny(), port).ConvertTo()
        ns.PacketSinkHelper("ns3::TcpSocketFactory", any_).Install(nodes.Get(dst))
        bulk = ns.BulkSendHelper("ns3::TcpSocketFactory", to)
        bulk.SetAttribute("MaxBytes", ns.UintegerValue(size))
        bulk.Install(nodes.Get(src))
    helper = ns.FlowMonitorHelper()
    monitor = helper.InstallAll()
    began = time.perf_counter()
    ns.Simulator.Stop(ns.Seconds(20))
    ns.Simulator.Run()
    took = time.perf_counter() - began
    monitor.CheckForLostPackets()
    large = [s.second for s in monitor.GetFlowStats() if s.second.rxBytes > 1_000_000]
    found = {
        "finish_s": sorted(s.timeLastRxPacket.GetSeconds() for s in large),
        "lost_packets": int(sum(s.lostPackets for s in large)),
        "ran_s": took,
    }
    ns.Simulator.Destroy()
    return found


def model(flows) -> dict:
    """Simulate the same flows as fluids."""
    import numpy as np
    from tokenlife.network import route, simulate_flows
    from tokenlife.network.fabrics import leaf_spine

    fabric = leaf_spine(8, RATE_BPS, 4, 4)  # two leaves, one spine: one link between
    src, dst, size = np.array(flows).T
    framed = size + HEADERS * np.ceil(size / SEGMENT)
    began = time.perf_counter()
    # ns-3's switches are joined by one cable where ours has a spine: a hop less.
    hops = 3
    store = hops * (DELAY_US * 1e-6 + 8 * (SEGMENT + HEADERS) / RATE_BPS)
    found = simulate_flows(fabric, route(fabric, src, dst), framed, latency_s=store)
    return {"finish_s": sorted(found.finish_s.tolist()), "ran_s": time.perf_counter() - began}


def record(path: str) -> None:
    """Keep what both say."""
    from pathlib import Path

    from tokenlife.provenance import write_record

    with Path(path).open() as file:
        seen = json.load(file)
    rows = []
    for name, flows in CASES.items():
        says = model(flows)
        rows.append({"case": name, "flows": len(flows), "packets": seen[name], "flow_model": says})
        a, b = seen[name]["finish_s"], says["finish_s"]
        print(f"{name:<22}{a[-1]:8.4f} s packets {b[-1]:8.4f} s flows {b[-1] / a[-1] - 1:+.2%}")
    parts = [f"network/{part}.py" for part in ("simulate", "fairshare", "routing")]
    out = Path(__file__).parents[2] / "data" / "results" / "17_ns3.json"
    write_record(out, {"cases": rows, "simulator": "ns-3.44, TCP"}, parts=parts)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        record(sys.argv[2])
    else:
        print(json.dumps({name: packets(flows) for name, flows in CASES.items()}))
