"""Packets against scapy's, conservation, captures read back, and a tensor found in a stream."""

import json
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib.macsec import MACsec, MACsecSCI
from scapy.contrib.roce import AETH, BTH
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.layers.vxlan import VXLAN
from scapy.packet import Raw
from scapy.utils import PcapNgWriter, PcapWriter, wrpcap
from tokenlife import cli, lab, wire
from tokenlife.wire.capture import read_capture
from tokenlife.wire.framing import FramingError, tcp_over_ethernet
from tokenlife.wire.layers import LAYERS, dissect
from tokenlife.wire.physical import line_bits, line_code
from tokenlife.wire.stack import PATH_MTUS, Stack
from tokenlife.wire.stream import find_array, streams

FCS = 4
STAMPS = {"options": [("NOP", None), ("NOP", None), ("Timestamp", (1, 2))]}
EXTRAS = [
    {name: bool(n >> at & 1) for at, name in enumerate(("vlan", "ipv6", "vxlan", "macsec"))}
    for n in range(16)
]


def _scapy(stack, inner):
    """Build the frame that scapy makes of a stack around what IP carries; no frame check."""
    ip = IPv6 if stack.ipv6 else IP
    packet = ip() / inner
    if stack.vxlan:
        packet = ip() / UDP() / VXLAN(flags=8) / Ether() / packet
    tag = Dot1Q() / packet if stack.vlan else packet
    if stack.macsec:
        head = MACsec(SC=1, SCI=MACsecSCI(), type=0x0800)
        return Ether(type=0x88E5) / head / Raw(bytes(tag)) / Raw(bytes(16))
    return Ether() / tag


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("size", [1, 100, 1024, 1025, 4096, 10_003])
def test_every_packet_is_as_long_as_scapys(extras, size):
    tcp = Stack("tcp", 1500, **extras)
    for packet in tcp.packets(size):
        built = _scapy(tcp, TCP(**STAMPS) / Raw(bytes(packet.payload_bytes)))
        assert packet.frame_bytes == max(64, len(bytes(built)) + FCS)
    roce = Stack("rocev2", 1024, **extras)
    for packet in roce.packets(size):
        reth = 16 if packet.name in ("first", "only") else 0  # as the standard has it
        pad = -packet.payload_bytes % 4
        body = Raw(bytes(reth + packet.payload_bytes + pad))
        built = _scapy(roce, UDP(dport=4791) / BTH(padcount=pad) / body)
        assert packet.frame_bytes == len(bytes(built)) + FCS
    ack = roce.acknowledgements(1)
    built = _scapy(roce, UDP(dport=4791) / BTH(opcode="RC_ACKNOWLEDGE") / AETH())
    assert ack.frame_bytes == len(bytes(built)) + FCS


@given(
    st.integers(0, 1 << 24),
    st.sampled_from(
        [Stack("tcp", m, **e) for m in (1280, 1500, 9000) for e in EXTRAS]
        + [Stack("rocev2", m, **e) for m in PATH_MTUS for e in EXTRAS]
        + [Stack("ib", m) for m in PATH_MTUS]
    ),
)
def test_every_byte_of_the_wire_has_a_name(size, stack):
    framing, packets = stack.frame(size), stack.packets(size)
    assert sum(p.count * p.payload_bytes for p in packets) == size
    assert all(p.count > 0 and 0 < p.payload_bytes <= stack.payload_per_packet for p in packets)
    assert framing.packets == -(-size // stack.payload_per_packet)
    wire_bytes = sum(p.count * (p.frame_bytes + p.silent_bytes) for p in packets)
    assert wire_bytes == framing.wire_bytes
    named = size + sum(framing.header_bytes.values()) + framing.padding_bytes
    assert named + framing.silent_bytes == framing.wire_bytes


@given(st.integers(0, 1 << 22), st.integers(68, 9000))
def test_tcp_is_as_the_thread_of_the_spine_counts_it(size, mtu):
    assert Stack("tcp", mtu).frame(size) == tcp_over_ethernet(mtu).frame(size)


def test_infiniband_by_hand():
    # LRH 8, BTH 12, RETH 16 in the first alone, ICRC 4, VCRC 2 (the standard's table of lengths).
    assert [p.frame_bytes for p in Stack("ib", 256).packets(513)] == [298, 282, 26 + 1 + 3]


def test_the_line_carries_more_bits_than_the_mac():
    rates = {10e9: 10.3125e9, 25e9: 25.78125e9, 200e9: 212.5e9, 400e9: 425e9, 800e9: 850e9}
    for mac, line in rates.items():
        assert mac * line_code(mac).expansion == line
    assert line_bits(16, 400e9) == Fraction(136)
    with pytest.raises(FramingError, match="more than zero"):
        line_code(0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tcp", 20), "MTU of 20 is outside 68"),
        (("tcp", 1000, False, True), "outside 1280 to 65535 for IPv6"),
        (("tcp", 65_535, False, False, True), "inside VXLAN"),
        (("rocev2", 1500), "path MTU is one of"),
        (("ib", 4096, True), "InfiniBand has no vlan"),
        (("udp", 1500), "no transport 'udp'"),
    ],
)
def test_a_stack_that_cannot_be_is_one_line(arguments, words):
    with pytest.raises(FramingError, match=words):
        Stack(*arguments)


def test_messages_that_cannot_be():
    with pytest.raises(FramingError, match="cannot have -1"):
        Stack("tcp", 1500).packets(-1)
    with pytest.raises(FramingError, match="at most 2147483648"):
        Stack("rocev2", 4096).packets((1 << 31) + 1)


def _fields(frame, layer):
    span = next(s for s in dissect(frame) if s.layer == layer)
    return dict(span.values(frame))


def test_each_byte_of_a_frame_has_one_layer_and_scapys_values():
    tcp = TCP(sport=1234, dport=80, seq=7, ack=9, flags="PA", window=500, **STAMPS)
    built = Ether() / Dot1Q(vlan=5) / IP(src="10.0.0.1", dst="10.0.0.2", ttl=3) / tcp / Raw(b"abc")
    frame = bytes(built)
    spans = dissect(frame)
    assert [s.layer for s in spans] == [
        *("ethernet header", "vlan tag", "ip header", "tcp header", "tcp timestamps", "payload")
    ]
    assert [s.start for s in spans[1:]] == [s.stop for s in spans[:-1]]
    assert (spans[0].start, spans[-1].stop) == (0, len(frame))
    assert _fields(frame, "vlan tag")["vlan"] == 5
    assert _fields(frame, "ip header")["time to live"] == 3
    assert _fields(frame, "ip header")["source"] == 0x0A000001
    head = _fields(frame, "tcp header")
    assert (head["sequence number"], head["acknowledgement"], head["window"]) == (7, 9, 500)
    assert (head["source port"], head["flags"], head["data offset"]) == (1234, 0x18, 8)


def test_a_rocev2_frame_is_read():
    bth = BTH(opcode="RC_RDMA_WRITE_ONLY", padcount=3, dqpn=77, psn=5)
    body = struct.pack(">QII", 1 << 40, 9, 5) + b"hello" + bytes(3)
    frame = bytes(Ether() / IPv6() / UDP(dport=4791) / bth / Raw(body))
    assert [(s.layer, s.stop - s.start) for s in dissect(frame)][3:] == [
        *(("bth", 12), ("reth", 16), ("payload", 5), ("padding", 3), ("icrc", 4))
    ]
    assert _fields(frame, "bth")["queue pair"] == 77
    assert _fields(frame, "bth")["sequence number"] == 5
    assert _fields(frame, "reth") == {"virtual address": 1 << 40, "key": 9, "length": 5}


@given(st.binary(max_size=120), st.sampled_from([b"", b"\x08\x00", b"\x86\xdd", b"\x81\x00"]))
def test_any_bytes_are_dissected_or_refused(data, kind):
    frame = data[:12] + kind + data[12:]
    try:
        spans = dissect(frame)
    except FramingError:
        return
    assert b"".join(frame[s.start : s.stop] for s in spans) == frame


def test_layouts_are_whole_bytes():
    assert all(sum(bits for _, bits in layer.fields) % 8 == 0 for layer in LAYERS.values())


FRAMES = [Ether() / IP() / TCP(seq=n) / Raw(bytes([n]) * n) for n in range(1, 6)]


def _files(folder):
    for frame, n in zip(FRAMES, range(5), strict=True):
        frame.time = 1000 + n / 4
    wrpcap(str(folder / "micro.pcap"), FRAMES)
    with PcapWriter(str(folder / "nano.pcap"), nano=True, endianness=">", linktype=1) as file:
        file.write(FRAMES)
    with PcapNgWriter(str(folder / "new.pcapng")) as file:
        file.write(FRAMES)
    rows = np.zeros((5, 256), np.uint8)
    for row, frame in zip(rows, FRAMES, strict=True):
        row[: len(frame)] = np.frombuffer(bytes(frame), np.uint8)
    lengths, times_s = np.array([len(f) for f in FRAMES]), 1000 + np.arange(5) / 4
    wire.write_pcap(folder / "ours.pcap", rows, lengths, times_s)
    return sorted(folder.iterdir())


def test_captures_of_others_and_our_own_are_read(tmp_path):
    files = _files(tmp_path)
    assert len(files) == 4
    for path in files:
        found = read_capture(path)
        assert [frame.data for frame in found] == [bytes(frame) for frame in FRAMES]
        assert [frame.length for frame in found] == [len(frame) for frame in FRAMES]
        assert [frame.time_s for frame in found] == pytest.approx(1000 + np.arange(5) / 4)


def test_a_file_cut_anywhere_is_one_line_or_fewer_frames(tmp_path):
    for path in _files(tmp_path):
        content, cut, refused = path.read_bytes(), tmp_path / "cut", 0
        for size in range(len(content)):
            cut.write_bytes(content[:size])
            try:
                assert len(read_capture(cut)) < 5
            except FramingError as error:
                refused += 1
                assert "\n" not in str(error)
        assert refused > len(content) - 12


def test_foreign_files_are_one_line(tmp_path):
    file = tmp_path / "foreign"
    for content in (b"", b"abc", b"PK\x03\x04" * 30):
        file.write_bytes(content)
        with pytest.raises(FramingError, match="neither a pcap nor a pcapng"):
            read_capture(file)
    file.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 99, 101))
    with pytest.raises(FramingError, match="link type is 101"):
        read_capture(file)
    with pytest.raises(FramingError, match="No such file"):
        read_capture(tmp_path / "none")


@given(st.binary(max_size=200), st.sampled_from([b"\x0a\x0d\x0d\x0a", b"\xd4\xc3\xb2\xa1"]))
def test_no_bytes_break_the_reader(tmp_path_factory, data, magic):
    file = tmp_path_factory.getbasetemp() / "fuzz"
    file.write_bytes(magic + data)
    try:
        read_capture(file)
    except FramingError as error:
        assert "\n" not in str(error)


def _capture(data, start, size, order):
    """Cut data into TCP segments in a given order; return rows and lengths."""
    rows, lengths = np.zeros((len(order), 256), np.uint8), []
    for row, n in zip(rows, order, strict=True):
        seq = (start + n * size) % 2**32
        built = bytes(Ether() / IP() / TCP(seq=seq, flags="A") / Raw(data[n * size :][:size]))
        row[: len(built)] = np.frombuffer(built, np.uint8)
        lengths.append(len(built))
    return rows, np.array(lengths)


@given(st.permutations(range(9)), st.sampled_from([0, 2**31 - 50, 2**32 - 333]), st.data())
def test_a_stream_survives_disorder_repeats_and_wrap(order, start, draw):
    order = list(order) + draw.draw(st.lists(st.integers(0, 8), max_size=4))
    array = np.random.default_rng(1).standard_normal(110).astype(np.float32)
    data = b"head" + array.tobytes() + b"tail"
    found = streams(*_capture(data, start, 50, order))
    assert found[0].data.tobytes() == data
    stream, at, copy = find_array(found, array)
    assert at == 4
    assert copy.tobytes() == array.tobytes()
    pieces = stream.pieces(at, array.nbytes)
    assert sum(p.length for p in pieces) == array.nbytes
    assert [order[p.frame] for p in pieces] == list(range(9))


def test_a_gap_is_no_tensor():
    array = np.arange(100, dtype=np.float32)
    found = streams(*_capture(array.tobytes(), 5, 50, [0, 1, 2, 4, 5, 6, 7]))
    with pytest.raises(FramingError, match="none of the capture's 1 TCP streams holds"):
        find_array(found, array)
    zeros = np.zeros(12, np.float32)  # the gap reads as zeros, and is none
    with pytest.raises(FramingError, match="holds these 48 bytes"):
        find_array(found, zeros)


def test_a_capture_without_tcp_is_one_line():
    with pytest.raises(FramingError, match="no TCP payload"):
        streams(np.zeros((2, 256), np.uint8), np.array([60, 60]))


def _captured_sum(here, size):
    import base64

    import numpy as np
    import torch
    import torch.distributed as dist
    from tokenlife.lab.meter import Capture

    gradient = torch.from_numpy(np.random.default_rng(here.rank).standard_normal(size, np.float32))
    own = gradient.clone()
    dist.all_reduce(torch.ones(here.ranks * 64))  # opens the connections
    with Capture(here._where["interface"], 2048, 4096) as capture:
        here.together()
        dist.all_reduce(gradient)
        here.together()
        frames, lengths, _, outgoing, dropped = capture.read()
    text = [base64.b64encode(bytes(x)).decode() for x in (frames[outgoing], own.numpy())]
    width = frames.shape[1]
    reduced = base64.b64encode(gradient.numpy().tobytes()).decode()
    return [*text, reduced, lengths[outgoing].tolist(), width, dropped]


def test_a_gradient_is_found_in_the_labs_capture():
    import base64

    size = 12_000
    with lab.VirtualCluster(2, offload=False) as cluster, lab.Team(cluster) as team:
        if cluster.place != "namespaces":
            pytest.skip("no network namespaces here: an interface of one's own cannot be captured")
        found = team.call(_captured_sum, size=size)
    for frames, own, reduced, lengths, width, dropped in found:
        assert dropped == 0
        rows = np.frombuffer(base64.b64decode(frames), np.uint8).reshape(-1, width)
        whole = streams(rows, np.array(lengths))
        for values in (own, reduced):
            values = np.frombuffer(base64.b64decode(values), np.float32)
            # Two ranks: a ring sends half of its own values, then the reduced other half.
            held = 0
            for block in np.split(values, 4):
                try:
                    _, _, copy = find_array(whole, block)
                except FramingError:
                    continue
                held += 1
                assert copy.tobytes() == block.tobytes()
            assert held == 2


def _counted_sum(here, size):
    import torch
    import torch.distributed as dist
    from tokenlife.lab.meter import Capture
    from tokenlife.wire.decode import TcpFrames

    numbers = torch.ones(size)
    dist.all_reduce(numbers)  # opens the connections
    with Capture(here.interface, 256, 8192) as capture:
        here.together(0.1)
        dist.all_reduce(numbers)
        here.together(0.1)
        frames, lengths, _, outgoing, dropped = capture.read()
    return TcpFrames.read(frames[outgoing], lengths[outgoing]).count() | {"dropped": int(dropped)}


@pytest.mark.parametrize(("ranks", "size"), [(4, 6_144), (4, 100_000), (3, 30_000)])
def test_packets_are_as_many_as_the_model_says(ranks, size):
    with lab.VirtualCluster(ranks, offload=False) as cluster, lab.Team(cluster) as team:
        if cluster.place != "namespaces":
            pytest.skip("no network namespaces here: an interface of one's own cannot be captured")
        found = team.call(_counted_sum, size=size)
    # gloo's ring: two segments of the buffer for each rank, each with a header before it, sent on
    # in 2 (n - 1) rounds; and a notice of a header alone before it, from either end.
    messages, segment = 2 * 2 * (ranks - 1), 4 * size // (2 * ranks)
    packets = messages * Stack("tcp", 1500).frame(segment + 48).packets + 2 * messages
    for each in found:
        assert each["dropped"] == 0
        assert each["payload_bytes"] == messages * (segment + 3 * 48)
        assert each["data_packets"] == packets


def test_command(capsys):
    asked = ["wire", "--bytes", "1MB", "--transport", "tcp", "--mtu", "1500"]
    assert cli.main([*asked, "--rate", "400Gbps", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["packets"], data["payload_bytes"], data["wire_bytes"]) == (691, 10**6, 1_062_190)
    assert data["goodput_ratio"] == 10**6 / 1_062_190
    assert data["line_bits"] == 1_062_190 * 8.5
    assert cli.main([*asked[:-1], "12"]) == 2
    assert "MTU of 12" in capsys.readouterr().err
