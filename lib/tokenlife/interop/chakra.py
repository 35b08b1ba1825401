"""A rank's operations of one step as a Chakra execution trace, in the JSON form of its schema.

Chakra [1]_ is what ASTRA-sim reads: nodes with dependencies, here communication only. Its files
are protocol buffers; this is their JSON mapping, line by line: the metadata, then one node a line,
which ``google.protobuf.json_format.Parse`` turns into the messages of ``et_def.proto``. The binary
form is left out, as it needs a package that the book does not. So is computation: an operation
depends on the last one of its rank.

References
----------
.. [1] S. Sridharan et al., "Chakra: advancing performance benchmarking and co-design using
   standardized execution traces", 2023.
"""

import json
from collections.abc import Iterable

from tokenlife.errors import TokenlifeError
from tokenlife.parallel.ops import CommOp

COLLECTIVES = {
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
}


def chakra_lines(operations: Iterable[CommOp], rank: int) -> list[str]:
    """Write the operations that a rank takes part in.

    Parameters
    ----------
    operations
        In order; each counts as often as it says.
    rank
        Whose trace it is: of a send it is the sender or the receiver.

    Raises
    ------
    TokenlifeError
        For an operation without the rank, or one that Chakra does not know.

    Examples
    --------
    >>> lines = chakra_lines([CommOp("all_reduce", "dp", (0, 1), 4096, 4, "backward", 2)], 0)
    >>> len(lines), json.loads(lines[2])["type"], json.loads(lines[2])["ctrlDeps"]
    (3, 'COMM_COLL_NODE', ['0'])
    """
    lines = [json.dumps({"version": "0.0.4"})]
    for op in operations:
        if rank not in op.group:
            raise TokenlifeError(f"rank {rank} takes no part in {op.kind} of {op.group}")
        attributes = [{"name": "comm_size", "int64Val": str(op.bytes_)}]
        if op.kind in COLLECTIVES:
            type_ = "COMM_COLL_NODE"
            attributes.append({"name": "comm_type", "int64Val": str(COLLECTIVES[op.kind])})
            group = ",".join(map(str, op.group))
            attributes.append({"name": "pg_name", "stringVal": group})
        elif len(op.group) == 2:
            src, dst = op.group
            type_ = "COMM_SEND_NODE" if rank == src else "COMM_RECV_NODE"
            ends = {"comm_src": src, "comm_dst": dst, "comm_tag": 0}
            attributes += [{"name": k, "int32Val": v} for k, v in ends.items()]
        else:
            raise TokenlifeError(f"Chakra has no {op.kind}; it has {', '.join(COLLECTIVES)}")
        attributes.append({"name": "is_cpu_op", "boolVal": False})
        for _ in range(op.count):
            number = len(lines) - 1
            node = {"id": str(number), "name": f"{op.axis} {op.kind} {op.phase}", "type": type_}
            node |= {"ctrlDeps": [str(number - 1)] if number else [], "attr": attributes}
            lines.append(json.dumps(node))
    return lines
