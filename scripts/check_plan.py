#!/usr/bin/env python3
"""Checks a plan's JSON by the rules R1 to R8 of the plan format, with the standard library alone.

Written from the description of the format, not from the product's own checker, and with other
means: order is a reachability relation over tasks, sharing is looked at pair by pair. It is slow
and plain on purpose. Exit code 0: no violation; 1: violations, one a line; 2: not a plan.

    check_plan.py [--to-the-letter] PLAN.json

R3 asks what lives through a phase. A value that every way round writes anew before it is read is
not needed in between; taken to the letter the rule keeps it all the same. Both can be asked for.
"""

import hashlib
import json
import re
import sys


class Checker:
    def __init__(self, plan, to_the_letter=False):
        self.plan = plan
        self.to_the_letter = to_the_letter
        self.violations = []
        self.tensors = plan["tensors"]
        self.phases = {phase["name"]: phase for phase in plan["phases"]}
        self.maxima = [dim["max"] for dim in plan["dims"]]

    def bad(self, rule, text):
        if len(self.violations) < 200:
            self.violations.append(f"{rule}: {text}")

    def run(self):
        self.identities()
        self.sizes()
        orders = {name: self.order(phase) for name, phase in self.phases.items()}
        if any(order is None for order in orders.values()):
            return self.violations
        self.lasting_reads()
        for name, phase in self.phases.items():
            self.phase(name, phase, orders[name])
        self.overlaps()
        self.states()
        self.witness(orders)
        self.colouring()
        self.envelope()
        return self.violations

    # Form

    def identities(self):
        for table in ("models", "dims", "tensors", "buffers"):
            for index, row in enumerate(self.plan[table]):
                if row["id"] != index:
                    self.bad("form", f"{table}[{index}] has id {row['id']}")
        for name, phase in self.phases.items():
            for index, op in enumerate(phase["ops"]):
                if op["id"] != index:
                    self.bad("form", f"{name}: operation {index} has id {op['id']}")
                touched = [access["tensor"] for access in op["access"]]
                for tensor in op["inputs"] + op["outputs"] + op["workspace"]:
                    if tensor not in touched:
                        self.bad("form", f"{name}/{op['name']}: operand {tensor} has no access")

    # R6

    def value(self, size):
        if isinstance(size, int):
            return size
        (kind, parts), = size.items()
        if kind == "dim":
            return self.maxima[parts]
        values = [self.value(part) for part in parts]
        if kind == "add":
            return sum(values)
        if kind == "mul":
            product = 1
            for value in values:
                product *= value
            return product
        if kind == "ceil_div":
            return -(-values[0] // values[1])
        return {"min": min, "max": max}[kind](values)

    # Elements of a block and its bytes, for the element types that have blocks.
    BLOCKS = {
        "u8": (1, 1), "i32": (1, 4), "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2),
        "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24),
        "q2_k": (256, 84), "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176),
        "q6_k": (256, 210),
    }

    def sizes(self):
        arena = self.plan["arena"]
        alignment = arena["alignment"]
        if alignment < 64 or alignment & alignment - 1:
            self.bad("R6", f"alignment {alignment} is no power of two from 64 up")
            alignment = 64
        for tensor in self.tensors:
            elements = 1
            for extent in tensor["shape"]:
                elements *= extent
            block, block_bytes = self.BLOCKS[tensor["dtype"]]
            needs = [self.value(tensor["size"]), -(-elements // block) * block_bytes]
            if tensor["bytes"] < max(needs):
                self.bad("R6", f"{tensor['name']}: {tensor['bytes']} bytes of {max(needs)}")
            offset = tensor["offset"]
            if offset is None:
                continue
            if offset % alignment:
                self.bad("R6", f"{tensor['name']}: offset {offset} is not aligned")
            if offset < 0 or offset + tensor["bytes"] > arena["bytes"]:
                self.bad("R6", f"{tensor['name']}: outside the arena")
        for name, phase in self.phases.items():
            for op in phase["ops"]:
                have = sum(self.tensors[id]["bytes"] for id in op["workspace"])
                if have < op["workspace_bytes_required"]:
                    self.bad("R6", f"{name}/{op['name']}: workspace of {have} bytes")
                for id in op["inputs"] + op["outputs"] + op["workspace"]:
                    tensor = self.tensors[id]
                    if tensor["offset"] is None:
                        self.bad("R6", f"{name}/{op['name']}: {tensor['name']} has no place")
                    if tensor["phase"] not in (None, name):
                        self.bad("R1", f"{name}/{op['name']}: {tensor['name']} is of another phase")

    # R5

    def order(self, phase):
        """For each task the set of tasks before it, as bits; None when some task cannot start."""
        tasks = [task for lane in phase["lanes"] for task in lane]
        shards = {}
        for task in tasks:
            shards.setdefault(task["op"], []).append((task["shard"], task["shards"]))
        for op in phase["ops"]:
            found = sorted(shards.get(op["id"], []))
            if not found or found != [(shard, len(found)) for shard in range(len(found))]:
                self.bad("R5", f"{phase['name']}/{op['name']}: shards {found[:4]}")
        signallers = {}
        for index, task in enumerate(tasks):
            if task["signals"] is not None:
                signallers.setdefault(task["signals"], []).append(index)
        direct, index = [], 0
        for lane in phase["lanes"]:
            for position, task in enumerate(lane):
                earlier = [index - 1] if position else []
                for event in task["waits"]:
                    if event not in signallers:
                        self.bad("R5", f"{phase['name']}: nobody signals event {event}")
                        return None
                    earlier += signallers[event]
                direct.append(earlier)
                index += 1
        before = [None] * len(tasks)
        missing = [len(set(earlier)) for earlier in direct]
        followers = [[] for _ in tasks]
        for index, earlier in enumerate(direct):
            for other in set(earlier):
                followers[other].append(index)
        ready = [index for index, count in enumerate(missing) if count == 0]
        while ready:
            index = ready.pop()
            bits = 0
            for other in direct[index]:
                bits |= before[other] | 1 << other
            before[index] = bits
            for follower in followers[index]:
                missing[follower] -= 1
                if missing[follower] == 0:
                    ready.append(follower)
        if any(bits is None for bits in before):
            self.bad("R5", f"{phase['name']}: tasks wait for each other")
            return None
        return tasks, before

    # R1, R2, R3

    def accesses(self, phase, tasks):
        """For each tensor its accesses (task, operation, access) in program order."""
        by_op = {}
        for index, task in enumerate(tasks):
            by_op.setdefault(task["op"], []).append(index)
        result = {}
        for op in phase["ops"]:
            for access in op["access"]:
                for task in by_op.get(op["id"], []):
                    result.setdefault(access["tensor"], []).append((task, op, access))
        return result

    @staticmethod
    def disjoint(a, a_task, b, b_task):
        return (
            a["split"] == b["split"] == "even"
            and (a["axis"], a["unit"]) == (b["axis"], b["unit"])
            and a_task["shards"] == b_task["shards"]
            and a_task["shard"] != b_task["shard"]
        )

    def phase(self, name, phase, order):
        tasks, before = order
        accesses = self.accesses(phase, tasks)
        for id, touches in accesses.items():
            tensor = self.tensors[id]
            if tensor["phase"] is not None and touches[0][2]["mode"] != "write":
                self.bad("R1", f"{name}/{touches[0][1]['name']}: reads unwritten {tensor['name']}")
            self.one_tensor(name, tensor, touches, tasks, before)
        self.in_place(name, phase)
        placed = sorted(
            (self.tensors[id]["offset"], self.tensors[id]["bytes"], id)
            for id in range(len(self.tensors))
            if self.tensors[id]["offset"] is not None
            and self.tensors[id]["bytes"] > 0
            and self.tensors[id]["phase"] in (None, name)
        )
        summaries = {
            id: self.summary(touches, before) for id, touches in accesses.items()
        }
        open_spans = []
        for offset, size, id in placed:
            open_spans = [(end, other) for end, other in open_spans if end > offset]
            for _, other in open_spans:
                self.pair(name, phase, other, id, accesses, summaries, before)
            open_spans.append((offset + size, id))

    def one_tensor(self, name, tensor, touches, tasks, before):
        writes = [touch for touch in touches if touch[2]["mode"] != "read"]
        for first in writes:
            for other in touches:
                if first is other or first[0] == other[0] and first[2] is other[2]:
                    continue
                if other[2]["mode"] != "read" and other[0] < first[0]:
                    continue
                if self.disjoint(first[2], tasks[first[0]], other[2], tasks[other[0]]):
                    continue
                a, b = (first, other) if first[1]["id"] < other[1]["id"] else (other, first)
                if a[1] is b[1] or not before[b[0]] >> a[0] & 1:
                    pair = f"{a[1]['name']} and {b[1]['name']}"
                    self.bad("R2", f"{name}: {tensor['name']}: {pair} are not ordered")
                    return

    @staticmethod
    def summary(touches, before):
        """Tasks that touch a tensor; tasks before every write of it."""
        touched, before_writes = 0, -1
        for task, _, access in touches:
            touched |= 1 << task
            if access["mode"] != "read":
                before_writes &= before[task]
        return touched, before_writes

    def pair(self, name, phase, a, b, accesses, summaries, before):
        """Two tensors with common bytes in one phase."""
        first, second = self.tensors[a], self.tensors[b]
        if "external" in (first["residence"], second["residence"]) and None is (
            first["phase"] or second["phase"]
        ):
            self.bad("R3", f"{first['name']} and {second['name']} share bytes, one is the host's")
            return
        for kept, other in ((a, b), (b, a)):
            if self.tensors[kept]["phase"] is None and self.lives_through(name, kept):
                if any(touch[2]["mode"] != "read" for touch in accesses.get(other, [])):
                    names = f"{self.tensors[other]['name']} over {self.tensors[kept]['name']}"
                    self.bad("R3", f"{name}: writes {names}, which lives through it")
                return
        if a not in accesses or b not in accesses:
            return
        for early, late in ((a, b), (b, a)):
            if summaries[early][0] & ~summaries[late][1] == 0:
                return
            if self.precedes_in_place(phase, early, late, accesses, before):
                return
        self.bad("R2", f"{name}: {first['name']} and {second['name']} share bytes unordered")

    @staticmethod
    def precedes_in_place(phase, early, late, accesses, before):
        pairs = {
            op["id"]
            for op in phase["ops"]
            for output, source in op["in_place"]
            if op["inputs"][source] == early and op["outputs"][output] == late
        }
        if not pairs:
            return False
        for task, op, _ in accesses[early]:
            for other, other_op, access in accesses[late]:
                if access["mode"] == "read":
                    continue
                if op["id"] in pairs and op is other_op:
                    continue
                if not before[other] >> task & 1:
                    return False
        return True

    def touched(self, name):
        """For each tensor that a phase touches, whether it writes it."""
        result = {}
        for op in self.phases[name]["ops"]:
            for access in op["access"]:
                id = access["tensor"]
                result[id] = result.get(id, False) or access["mode"] != "read"
        return result

    def overlaps(self):
        """Tasks of phases that may run at once are ordered by nothing: R2 without exception."""
        for one, other in self.plan["flow"].get("overlap", []):
            first, second = self.touched(one), self.touched(other)
            spans = [
                (self.tensors[id]["offset"], self.tensors[id]["bytes"], id, side, writes)
                for side, touched in enumerate((first, second))
                for id, writes in touched.items()
                if self.tensors[id]["bytes"] > 0
            ]
            open_spans = []
            for offset, size, id, side, writes in sorted(spans):
                open_spans = [span for span in open_spans if span[0] > offset]
                for _, other_id, other_side, other_writes in open_spans:
                    if side != other_side and (writes or other_writes):
                        names = f"{self.tensors[id]['name']} and {self.tensors[other_id]['name']}"
                        self.bad("R2", f"{one} beside {other}: {names} share bytes")
                open_spans.append((offset + size, id, side, writes))

    def in_place(self, name, phase):
        for op in phase["ops"]:
            for output, source in op["in_place"]:
                if [output, source] not in op["may_in_place"]:
                    self.bad("R2", f"{name}/{op['name']}: pair {output},{source} is not allowed")
                    continue
                target, old = op["outputs"][output], op["inputs"][source]
                if target == old:
                    continue
                a, b = self.tensors[target], self.tensors[old]
                if (a["offset"], a["bytes"]) != (b["offset"], b["bytes"]):
                    self.bad("R2", f"{name}/{op['name']}: in place at other bytes")
                slices = [
                    (access["split"], access.get("axis"), access.get("unit"))
                    for access in op["access"]
                    if access["tensor"] in (target, old)
                ]
                if len(set(slices)) != 1:
                    self.bad("R2", f"{name}/{op['name']}: in place with other slices")

    def first_mode(self, name, id):
        if not hasattr(self, "first_modes"):
            self.first_modes = {}
            for phase in self.phases.values():
                for op in phase["ops"]:
                    for access in op["access"]:
                        key = (phase["name"], access["tensor"])
                        self.first_modes.setdefault(key, access["mode"])
        return self.first_modes.get((name, id))

    def exposed(self):
        if not hasattr(self, "exposed_in"):
            self.exposed_in = {}
            for name, phase in self.phases.items():
                seen = set()
                for op in phase["ops"]:
                    for access in op["access"]:
                        if access["tensor"] not in seen and access["mode"] != "write":
                            self.exposed_in.setdefault(access["tensor"], set()).add(name)
                    seen.update(access["tensor"] for access in op["access"])
        return self.exposed_in

    def reachable(self, name):
        """Phases that may run after a phase, itself included."""
        if not hasattr(self, "reached"):
            self.reached = {}
            for start in self.phases:
                seen, ready = {start}, [start]
                while ready:
                    for after in self.plan["flow"]["next"].get(ready.pop(), []):
                        if after not in seen:
                            seen.add(after)
                            ready.append(after)
                self.reached[start] = seen
        return self.reached[name]

    def live_at_start(self, name, id, seen):
        """Whether some way from the start of a phase reads the tensor before it writes it."""
        if name in seen:
            return False
        seen.add(name)
        mode = self.first_mode(name, id)
        if mode is not None:
            return mode != "write"
        return self.live_at_end(name, id, seen)

    def live_at_end(self, name, id, seen):
        after = self.plan["flow"]["next"].get(name, [])
        return any(self.live_at_start(follower, id, seen) for follower in after)

    def lives_through(self, name, id):
        if self.tensors[id]["residence"] == "external":
            return True
        if self.to_the_letter:
            return bool(self.exposed().get(id, set()) & self.reachable(name))
        return self.live_at_start(name, id, set()) or self.live_at_end(name, id, set())

    def lasting_reads(self):
        """Constants and carried values are written on every way to their readers."""
        for id, readers in self.exposed().items():
            tensor = self.tensors[id]
            if tensor["phase"] is not None or tensor["residence"] in ("external", "state"):
                continue
            seen, ready = set(), list(self.plan["flow"]["entry"])
            while ready:
                name = ready.pop()
                if name in seen:
                    continue
                seen.add(name)
                if name in readers:
                    self.bad("R1", f"{name}: may read {tensor['name']} before it is written")
                writes = any(
                    access["tensor"] == id and access["mode"] != "read"
                    for op in self.phases[name]["ops"]
                    for access in op["access"]
                )
                if not writes:
                    ready.extend(self.plan["flow"]["next"].get(name, []))

    # R4

    def states(self):
        versions = {}
        for tensor in self.tensors:
            if tensor["state"] is not None:
                versions.setdefault(tensor["state"], []).append(tensor)
        for state, tensors in versions.items():
            if len({(tensor["offset"], tensor["bytes"]) for tensor in tensors}) != 1:
                self.bad("R4", f"the versions of {state} do not stand in one place")

    # R7

    def witness(self, orders):
        arena = self.plan["arena"]
        ids = arena["witness"]
        if len(set(ids)) != len(ids):
            self.bad("R7", "the witness names a tensor twice")
        align = max(arena["alignment"], 1)
        total = sum(-(-self.tensors[id]["bytes"] // align) * align for id in ids)
        if total != arena["live_peak_bytes"]:
            self.bad("R7", f"the witness adds up to {total}, not {arena['live_peak_bytes']}")
        if arena["live_peak_bytes"] > arena["bytes"]:
            self.bad("R7", "live peak above the arena")
        if arena["transient_live_peak_bytes"] > arena["transient_bytes"]:
            self.bad("R7", "transient live peak above the transient bytes")
        own = {self.tensors[id]["phase"] for id in ids} - {None}
        if len(own) > 1:
            self.bad("R7", f"the witness is of several phases {sorted(own)}")
            return
        names = own or set(self.phases)
        lasting = [id for id in ids if self.tensors[id]["phase"] is None]
        exposed = self.exposed()
        fits = [
            name
            for name in names
            if all(exposed.get(id, set()) & self.reachable(name) for id in lasting)
        ]
        if not fits:
            self.bad("R7", "a tensor of the witness does not live through its phase")
            return
        name = fits[0]
        phase, (tasks, before) = self.phases[name], orders[name]
        accesses = self.accesses(phase, tasks)
        transients = [id for id in ids if self.tensors[id]["phase"] == name]
        summaries = {id: self.summary(accesses.get(id, []), before) for id in transients}
        for index, a in enumerate(transients):
            for b in transients[:index]:
                ordered = any(
                    summaries[x][0] & ~summaries[y][1] == 0
                    or self.precedes_in_place(phase, x, y, accesses, before)
                    for x, y in ((a, b), (b, a))
                )
                if ordered:
                    names = f"{self.tensors[a]['name']} and {self.tensors[b]['name']}"
                    self.bad("R7", f"{names} of the witness are not needed at once")

    # R8

    def colouring(self):
        tenants = {}
        for tensor in self.tensors:
            if tensor["buffer"] is not None:
                tenants.setdefault(tensor["buffer"], []).append(tensor)
        for buffer in self.plan["buffers"]:
            here = tenants.pop(buffer["id"], [])
            largest = max((tensor["bytes"] for tensor in here), default=0)
            if buffer["bytes"] != largest:
                self.bad("R8", f"buffer {buffer['id']}: {buffer['bytes']} bytes of {largest}")
            for tensor in here:
                if tensor["first"] is None or tensor["last"] is None:
                    self.bad("R8", f"buffer {buffer['id']}: {tensor['name']} has no interval")
            here = [t for t in here if t["first"] is not None and t["last"] is not None]
            spans = sorted((t["phase"] or "", t["first"], t["last"], t["name"]) for t in here)
            for a, b in zip(spans, spans[1:]):
                if a[0] == b[0] and b[1] <= a[2]:
                    self.bad("R8", f"buffer {buffer['id']}: {a[3]} and {b[3]} overlap")
        for buffer in tenants:
            self.bad("R8", f"no buffer {buffer}")
        for name, phase in self.phases.items():
            steps = {}
            for op in phase["ops"]:
                for access in op["access"]:
                    steps.setdefault(access["tensor"], []).append(op["id"])
            for id, used in steps.items():
                tensor = self.tensors[id]
                if tensor["phase"] == name and (tensor["first"], tensor["last"]) != (
                    min(used),
                    max(used),
                ):
                    self.bad("R8", f"{tensor['name']}: not its steps")

    def envelope(self):
        envelope, arena = self.plan["envelope"], self.plan["arena"]
        runtime = envelope["runtime"]
        if sum(runtime[part] for part in ("heap", "stacks", "image", "io")) != runtime["total"]:
            self.bad("R8", "the runtime's parts do not add up")
        parts = [envelope[part] for part in ("weights", "kv", "persistent", "intermediate")]
        if sum(parts) != arena["bytes"]:
            self.bad("R8", "the arena's bytes are not accounted exactly once")
        if sum(parts) + runtime["total"] != envelope["total"]:
            self.bad("R8", "the envelope does not add up")
        if envelope["free"] != envelope["hardware"] - envelope["total"]:
            self.bad("R8", "free is not hardware less total")
        if envelope["fits"] != (envelope["total"] <= envelope["hardware"]):
            self.bad("R8", "fits contradicts its numbers")
        if envelope["load_peak"] > envelope["total"]:
            self.bad("R8", "the load peak is above the total")


def check_digest(text, plan):
    stated = plan["digest"]
    emptied = re.sub(r'("digest"\s*:\s*")' + re.escape(stated) + '"', r'\1"', text)
    return hashlib.sha256(emptied.encode()).hexdigest() == stated


def main():
    names = [name for name in sys.argv[1:] if name != "--to-the-letter"]
    if len(names) != 1:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    with open(names[0], encoding="utf-8", newline="") as file:
        text = file.read()
    try:
        plan = json.loads(text)
        if plan["format"] != "dctms-plan" or plan["version"] != 1:
            print("not a plan of version 1", file=sys.stderr)
            return 2
        violations = Checker(plan, len(names) < len(sys.argv) - 1).run()
        if not check_digest(text, plan):
            violations.append("digest: not that of these bytes")
    except (KeyError, IndexError, TypeError, ValueError) as error:
        print(f"not a plan: {type(error).__name__} {error}", file=sys.stderr)
        return 2
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
