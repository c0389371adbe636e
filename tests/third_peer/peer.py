#!/usr/bin/env python3
"""A third implementation of a RoCEv2 reliable connection, small and slow, over one ordinary UDP socket.

Written from the InfiniBand specification and annex A17 alone; it shares no code with the engine that it is set against.
Commands come as lines on standard input, each is answered with one line that begins with "ok" or "error".

    peer.py ADDRESS          prints "ok PORT QPN PSN RKEY BASE"
    connect ADDRESS PORT QPN PSN MTU RKEY BASE
    post N                   N receives, each of any length
    store OFFSET HEX         puts bytes into own memory
    load OFFSET LEN          prints them
    received                 prints and forgets "KIND:LEN:IMM:HEX" of messages that took a receive
    drop N                   ignores the next N request packets
    send HEX IMM | write OFFSET HEX IMM | read OFFSET LEN | add OFFSET N | swap OFFSET COMPARE NEW
    badkey OFFSET HEX        a WRITE with a key that is not the peer's
    spoil HEX                a SEND whose ICRC has one wrong bit; it is not waited for
    stats                    prints a JSON object

"-" stands for no immediate data and for no bytes.
"""

import json
import os
import select
import socket
import struct
import sys
import time
import zlib

MEMORY = 1 << 20
BASE = 0x7700_0000_0000
PATIENCE = 10.0

SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_LAST_IMM, SEND_ONLY, SEND_ONLY_IMM = range(0, 6)
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM = range(6, 12)
READ_REQUEST, RESPONSE_FIRST, RESPONSE_MIDDLE, RESPONSE_LAST, RESPONSE_ONLY = range(12, 17)
ACK, ATOMIC_ACK, COMPARE_SWAP, FETCH_ADD = range(17, 21)
IMMEDIATE = (SEND_LAST_IMM, SEND_ONLY_IMM, WRITE_LAST_IMM, WRITE_ONLY_IMM)
ENDS = (SEND_LAST, SEND_LAST_IMM, SEND_ONLY, SEND_ONLY_IMM, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM)

ACKNOWLEDGED = 0x1F  # credits: not counted
RNR = 0x20 | 14  # 1.28 ms
NAK_SEQUENCE, NAK_INVALID, NAK_ACCESS = 0x60, 0x61, 0x62


class Peer:
    def __init__(self, address):
        self.v6 = ":" in address
        self.family = socket.AF_INET6 if self.v6 else socket.AF_INET
        self.address = address
        self.socket = socket.socket(self.family, socket.SOCK_DGRAM)
        if self.v6:
            self.socket.setsockopt(socket.IPPROTO_UDP, 102, 1)  # UDP_NO_CHECK6_RX
        else:
            # IP_MTU_DISCOVER = IP_PMTUDISC_DO: an unconnected socket then sends with identification 0.
            self.socket.setsockopt(socket.IPPROTO_IP, 10, 2)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.bind((address, 0))
        self.port = self.socket.getsockname()[1]
        number = os.urandom(12)
        self.qpn = int.from_bytes(number[0:3], "big") | 0x100
        self.psn = int.from_bytes(number[3:6], "big")
        self.rkey = int.from_bytes(number[6:10], "big")
        self.memory = bytearray(MEMORY)
        self.receives = 0
        self.messages = []
        self.expected = None
        self.msn = 0
        self.nak_sent = False
        self.parts = None  # of the message under way: [offset or None, bytes]
        self.to_drop = 0
        self.replay = {}  # PSN of an atomic -> the old value
        self.response = None  # to our outstanding request
        self.stats = {"good": 0, "bad_icrc": 0, "dropped": 0, "max_id": 0, "rnr": 0, "naks": 0, "repeats": 0}

    # Packets.

    def icrc(self, source, sport, target, dport, body, ident):
        length = 8 + len(body) + 4
        a, b = socket.inet_pton(self.family, source), socket.inet_pton(self.family, target)
        if self.v6:
            ip = struct.pack(">IHBB", 0x6FFFFFFF, length, 17, 0xFF) + a + b
        else:
            ip = struct.pack(">BBHHHBBH", 0x45, 0xFF, 20 + length, ident, 0x4000, 0xFF, 17, 0xFFFF) + a + b
        udp = struct.pack(">HHHH", sport, dport, length, 0xFFFF)
        body = body[:4] + b"\xff" + body[5:]  # FECN, BECN and the six bits beside them
        return struct.pack("<I", zlib.crc32(b"\xff" * 8 + ip + udp + body) & 0xFFFFFFFF)

    def emit(self, opcode, psn, extra=b"", payload=b"", ack=False, spoil=False):
        pad = -len(payload) % 4
        bth = struct.pack(">BBHII", opcode, 0x40 | pad << 4, 0xFFFF, self.peer_qpn, ack << 31 | psn & 0xFFFFFF)
        body = bth + extra + payload + bytes(pad)
        crc = self.icrc(self.address, self.port, self.peer[0], self.peer[1], body, 0)
        if spoil:
            crc = bytes([crc[0] ^ 1]) + crc[1:]
        self.socket.sendto(body + crc, self.peer[:2])

    def take(self):
        """Takes in one datagram."""
        data, origin = self.socket.recvfrom(9000)
        body, crc = data[:-4], data[-4:]
        # A UDP socket does not see the identification, so all that the engine may use are tried.
        for ident in range(1 if self.v6 else 64):
            if self.icrc(origin[0], origin[1], self.address, self.port, body, ident) == crc:
                break
        else:
            self.stats["bad_icrc"] += 1
            return
        self.stats["good"] += 1
        self.stats["max_id"] = max(self.stats["max_id"], ident)
        opcode, flags, pkey, qpn, word = struct.unpack(">BBHII", body[:12])
        if qpn & 0xFFFFFF != self.qpn or pkey != 0xFFFF or flags & 0x0F:
            self.stats["dropped"] += 1
            return
        pad = flags >> 4 & 3
        rest = body[12 : len(body) - pad]
        if RESPONSE_FIRST <= opcode <= ATOMIC_ACK:
            self.take_response(opcode, word & 0xFFFFFF, rest)
        elif self.to_drop > 0:
            self.to_drop -= 1
            self.stats["dropped"] += 1
        else:
            self.take_request(opcode, word & 0xFFFFFF, word >> 31, rest)

    # Responder.

    def acknowledge(self, psn, syndrome=ACKNOWLEDGED, opcode=ACK, more=b""):
        self.emit(opcode, psn, struct.pack(">I", syndrome << 24 | self.msn) + more)

    def refuse(self, psn, syndrome):
        self.stats["naks"] += 1
        self.acknowledge(psn, syndrome)

    def take_request(self, opcode, psn, ack, rest):
        ahead = psn - self.expected & 0xFFFFFF
        if 0 < ahead < 1 << 23:
            if not self.nak_sent:
                self.nak_sent = True
                self.refuse(self.expected, NAK_SEQUENCE)
            return
        again = ahead != 0
        if again:
            self.stats["repeats"] += 1
            if opcode in (COMPARE_SWAP, FETCH_ADD) and psn in self.replay:
                self.acknowledge(psn, opcode=ATOMIC_ACK, more=self.replay[psn])
            elif opcode == READ_REQUEST:
                self.answer_read(psn, rest)
            else:
                self.acknowledge(self.expected - 1)
            return
        self.nak_sent = False
        if opcode == READ_REQUEST:
            self.answer_read(psn, rest, True)
            return
        if opcode in (COMPARE_SWAP, FETCH_ADD):
            self.answer_atomic(opcode, psn, rest)
            return
        imm = None
        if opcode in (WRITE_FIRST, WRITE_ONLY, WRITE_ONLY_IMM):
            va, rkey, length = struct.unpack(">QII", rest[:16])
            rest = rest[16:]
            if length and (rkey != self.rkey or va < BASE or va + length > BASE + MEMORY):
                self.refuse(psn, NAK_ACCESS)
                return
            parts = [va - BASE, b""]
        elif opcode in (SEND_FIRST, SEND_ONLY, SEND_ONLY_IMM):
            parts = [None, b""]
        else:
            parts = self.parts
        if opcode in IMMEDIATE:
            imm = int.from_bytes(rest[:4], "big")
            rest = rest[4:]
        if parts is None or opcode > WRITE_ONLY_IMM:
            self.refuse(psn, NAK_INVALID)
            return
        consumes = opcode in ENDS and (parts[0] is None or imm is not None)
        if consumes and self.receives == 0:
            self.stats["rnr"] += 1
            self.acknowledge(psn, RNR)
            return
        self.parts = [parts[0], parts[1] + rest]
        self.expected = psn + 1 & 0xFFFFFF
        if opcode in ENDS:
            offset, data = self.parts
            self.parts = None
            self.msn = self.msn + 1 & 0xFFFFFF
            if offset is not None:
                self.memory[offset : offset + len(data)] = data
            if consumes:
                self.receives -= 1
                kind = "send" if offset is None else "write"
                shown = data.hex() if offset is None else ""
                self.messages.append(f"{kind}:{len(data)}:{'-' if imm is None else imm}:{shown}")
        if ack or opcode in ENDS:
            self.acknowledge(psn)

    def answer_read(self, psn, rest, first=False):
        va, rkey, length = struct.unpack(">QII", rest[:16])
        if rkey != self.rkey or va < BASE or va + length > BASE + MEMORY:
            self.refuse(psn, NAK_ACCESS)
            return
        count = max(1, -(-length // self.mtu))
        if first:
            self.expected = psn + count & 0xFFFFFF
            self.msn = self.msn + 1 & 0xFFFFFF
        data = bytes(self.memory[va - BASE : va - BASE + length])
        for i in range(count):
            if count == 1:
                opcode = RESPONSE_ONLY
            else:
                opcode = RESPONSE_FIRST if i == 0 else RESPONSE_LAST if i == count - 1 else RESPONSE_MIDDLE
            aeth = b"" if opcode == RESPONSE_MIDDLE else struct.pack(">I", ACKNOWLEDGED << 24 | self.msn)
            self.emit(opcode, psn + i, aeth, data[i * self.mtu : (i + 1) * self.mtu])

    def answer_atomic(self, opcode, psn, rest):
        va, rkey, value, compare = struct.unpack(">QIQQ", rest[:28])
        if rkey != self.rkey or va < BASE or va + 8 > BASE + MEMORY or va % 8:
            self.refuse(psn, NAK_ACCESS)
            return
        place = slice(va - BASE, va - BASE + 8)
        # In memory the number has the byte order of the engine's machine, on the wire it is big-endian.
        old = int.from_bytes(self.memory[place], sys.byteorder)
        if opcode == FETCH_ADD:
            new = old + value & (1 << 64) - 1
        else:
            new = value if old == compare else old
        self.memory[place] = new.to_bytes(8, sys.byteorder)
        self.expected = psn + 1 & 0xFFFFFF
        self.msn = self.msn + 1 & 0xFFFFFF
        self.replay[psn] = old.to_bytes(8, "big")
        self.acknowledge(psn, opcode=ATOMIC_ACK, more=self.replay[psn])

    # Requester: one request at a time.

    def take_response(self, opcode, psn, rest):
        if self.response is not None:
            self.response.append((opcode, psn, rest))

    def request(self, packets, done):
        """Sends packets of (opcode, extension headers, payload) from our PSN on until `done` of all responses is true."""
        first = self.psn
        span = packets[-1][3] if len(packets[-1]) > 3 else 1
        end = first + len(packets) - 1 + span
        deadline = time.monotonic() + PATIENCE
        begin = 0
        while True:
            self.response = []
            for i, packet in enumerate(packets):
                if i >= begin:
                    self.emit(packet[0], first + i, packet[1], packet[2], i == len(packets) - 1)
            resend = time.monotonic() + 1.0
            begin = 0
            while time.monotonic() < resend:
                self.wait(0.05)
                for opcode, psn, rest in self.response:
                    syndrome = 0 if opcode == RESPONSE_MIDDLE else rest[0]
                    if syndrome >> 5 == 1:  # not ready: from there on again
                        begin = psn - first & 0xFFFFFF
                        time.sleep(0.005)
                    elif syndrome == NAK_SEQUENCE:
                        begin = psn - first & 0xFFFFFF
                    elif syndrome >> 5 == 3:
                        self.psn = end & 0xFFFFFF
                        return f"nak {syndrome:#x}"
                    else:
                        continue
                    resend = 0
                    break
                else:
                    result = done(self.response, end - 1 & 0xFFFFFF)
                    if result is not None:
                        self.psn = end & 0xFFFFFF
                        self.response = None
                        return result
            if time.monotonic() > deadline:
                return None

    def acked(self, responses, last):
        if any(o == ACK and p == last and r[0] >> 5 == 0 for o, p, r in responses):
            return "acked"
        return None

    def cut(self, first, data, imm, extra=b""):
        """A SEND (first = 0) or WRITE (first = 6) in packets."""
        pieces = [data[i : i + self.mtu] for i in range(0, len(data), self.mtu)] or [b""]
        tail = b"" if imm is None else struct.pack(">I", imm)
        packets = []
        for i, piece in enumerate(pieces):
            begin, end = i == 0, i == len(pieces) - 1
            opcode = first + (4 if begin and end else 0 if begin else 2 if end else 1)
            if end and imm is not None:
                opcode += 1
            packets.append((opcode, (extra if begin else b"") + (tail if end else b""), piece))
        return packets

    def reth(self, offset, length, key=None):
        return struct.pack(">QII", self.peer_base + offset, self.peer_rkey if key is None else key, length)

    def read_done(self, length):
        def done(responses, last):
            count = max(1, -(-length // self.mtu))
            parts = {}
            for opcode, psn, rest in responses:
                if RESPONSE_FIRST <= opcode <= RESPONSE_ONLY:
                    parts[last - psn & 0xFFFFFF] = rest if opcode == RESPONSE_MIDDLE else rest[4:]
            if len(parts) < count:
                return None
            return b"".join(parts[i] for i in range(count - 1, -1, -1)).hex()

        return done

    def atomic_done(self, responses, last):
        for opcode, psn, rest in responses:
            if opcode == ATOMIC_ACK and psn == last:
                return str(int.from_bytes(rest[4:12], "big"))
        return None

    # Commands.

    def wait(self, seconds):
        if select.select([self.socket], [], [], seconds)[0]:
            self.take()

    def command(self, words):
        name, args = words[0], words[1:]

        def number(i):
            return int(args[i], 0)

        def imm(i):
            return None if args[i] == "-" else number(i)

        def data(i):
            return b"" if args[i] == "-" else bytes.fromhex(args[i])

        if name == "connect":
            self.peer = (args[0], number(1))
            self.peer_qpn, self.expected, self.mtu = number(2), number(3), number(4)
            self.peer_rkey, self.peer_base = number(5), number(6)
            return ""
        if name == "post":
            self.receives += number(0)
            return ""
        if name == "store":
            self.memory[number(0) : number(0) + len(data(1))] = data(1)
            return ""
        if name == "load":
            return self.memory[number(0) : number(0) + number(1)].hex()
        if name == "received":
            out, self.messages = self.messages, []
            return " ".join(out)
        if name == "drop":
            self.to_drop = number(0)
            return ""
        if name == "send":
            return self.request(self.cut(SEND_FIRST, data(0), imm(1)), self.acked)
        if name == "write":
            header = self.reth(number(0), len(data(1)))
            return self.request(self.cut(WRITE_FIRST, data(1), imm(2), header), self.acked)
        if name == "badkey":
            header = self.reth(number(0), len(data(1)), self.peer_rkey ^ 0x5A5A)
            return self.request(self.cut(WRITE_FIRST, data(1), None, header), self.acked)
        if name == "read":
            length = number(1)
            packets = [(READ_REQUEST, self.reth(number(0), length), b"", max(1, -(-length // self.mtu)))]
            return self.request(packets, self.read_done(length))
        if name in ("add", "swap"):
            value, compare = (number(1), 0) if name == "add" else (number(2), number(1))
            header = struct.pack(">QIQQ", self.peer_base + number(0), self.peer_rkey, value, compare)
            opcode = FETCH_ADD if name == "add" else COMPARE_SWAP
            return self.request([(opcode, header, b"")], self.atomic_done)
        if name == "spoil":
            self.emit(SEND_ONLY, self.psn, b"", data(0), True, spoil=True)
            return ""
        if name == "stats":
            return json.dumps(self.stats)
        return None


def main():
    peer = Peer(sys.argv[1])
    print("ok", peer.port, peer.qpn, peer.psn, peer.rkey, BASE, flush=True)
    inputs = [sys.stdin.fileno(), peer.socket]
    pending = b""
    while True:
        ready = select.select(inputs, [], [])[0]
        if peer.socket in ready:
            peer.take()
        if inputs[0] not in ready:
            continue
        got = os.read(inputs[0], 1 << 20)
        if not got:
            return
        *lines, pending = (pending + got).split(b"\n")
        for line in lines:
            answer = peer.command(line.decode().split())
            print("error" if answer is None else "ok " + answer, flush=True)


if __name__ == "__main__":
    main()
