"""Servers in threads of the test, which answer what no real server does."""
import socket
import threading

PORT = -6379  # in a map of Store: its own port


class Liar:
    """A server that answers every command with the same bytes."""

    def __init__(self, answer):
        self.answer = answer
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.talk, args=(connection,), daemon=True).start()

    def talk(self, connection):
        whole = b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % self.port
        try:
            while True:
                data = connection.recv(65536)
                if not data:
                    return
                for _ in range(data.count(b"PING\r\n")):
                    connection.sendall(b"+PONG\r\n")
                for _ in range(data.count(b"SLOTS\r\n")):
                    connection.sendall(whole)
                for _ in range(data.count(b"EXISTS\r\n") + data.count(b"SET\r\n") + data.count(b"GETRANGE\r\n")):
                    connection.sendall(self.answer.replace(b"PORT", b"%d" % self.port))
        except OSError:
            pass


class NoTls(Liar):
    """A server that sends @answer to whatever begins a TLS handshake, or closes: no answer at all; or waits: None."""

    def talk(self, connection):
        try:
            connection.recv(65536)
            if self.answer:
                connection.sendall(self.answer)
            if self.answer != b"":
                connection.recv(1)  # until the other side has enough
        except OSError:
            pass
        connection.close()


class Store(Liar):
    """A server with a map of its own, in which a command can find other replies first. Values are sent while @gives is set."""

    def __init__(self, ranges):
        self.ranges, self.values, self.once = ranges, {}, {}
        self.gives = threading.Event()
        self.gives.set()
        super().__init__(b"")

    def map(self):
        def item(i):
            if isinstance(i, list):
                return b"*%d\r\n" % len(i) + b"".join(map(item, i))
            if i is None:
                return b"$-1\r\n"
            if isinstance(i, int):
                return b":%d\r\n" % (self.port if i == PORT else i)
            return b"$%d\r\n%s\r\n" % (len(i), i.encode())
        return item(self.ranges)

    def answer_one(self, words):
        verb, n = words[0], words[1] if len(words) > 1 else b""
        if verb == b"PING":
            return b"+PONG\r\n"
        if verb == b"AUTH":
            return b"+OK\r\n"
        if verb == b"CLUSTER":
            return self.map()
        if n in self.once:
            return self.once.pop(n)
        if verb == b"EXISTS":
            return b":%d\r\n" % (n in self.values)
        if verb == b"SET":
            self.values.setdefault(n, words[2])
            return b"+OK\r\n"
        self.gives.wait()
        value = self.values.get(n, b"")
        return b"$%d\r\n%s\r\n" % (len(value), value)

    def talk(self, connection):
        file = connection.makefile("rb")
        try:
            while head := file.readline():
                words = []
                for _ in range(int(head[1:])):
                    words.append(file.read(int(file.readline()[1:]) + 2)[:-2])
                connection.sendall(self.answer_one(words))
        except OSError:
            pass
