"""Messages, file descriptors and the progress page between a worker and a child process."""

import contextlib
import math
import os
import resource
import socket
import struct
import threading

import pytest

from mops.child.channel import Channel, ProgressPage, Step, anonymous_file
from mops.system.clock import monotonic
from processes import descriptors


@pytest.fixture
def ends():
    socks = socket.socketpair()
    yield [Channel(sock) for sock in socks]
    for sock in socks:
        with contextlib.suppress(OSError):  # a test may have closed the descriptor
            sock.close()


def frame(size, n_fds=0):
    return struct.pack("!IB", size, n_fds)


class TestChannel:
    def test_messages_arrive_whole_and_in_order(self, ends):
        sent = [{"kind": "a"}, {}, {"text": "Genève \U0001f600", "list": [1, None, True]}]
        for message in sent:
            ends[0].send(message)
        assert [ends[1].receive() for _ in sent] == [(message, None) for message in sent]

    def test_numbers_arrive_exactly(self, ends):
        ends[0].send({"values": [2**64 - 1, 0.1 + 0.2, 1e22, -0.0, 1, 1.0]})
        assert repr(ends[1].receive()[0]["values"]) == repr([2**64 - 1, 0.1 + 0.2, 1e22, -0.0, 1, 1.0])

    def test_both_ends_may_send(self, ends):
        ends[0].send({"n": 1})
        ends[1].send({"n": 2})
        assert ends[0].receive()[0] == {"n": 2}
        assert ends[1].receive()[0] == {"n": 1}

    def test_a_message_may_be_larger_than_the_sockets_buffer(self, ends):
        message = {"text": "x" * 8_000_000}
        sender = threading.Thread(target=ends[0].send, args=(message,))
        sender.start()
        assert ends[1].receive() == (message, None)
        sender.join()

    def test_a_message_that_arrives_byte_by_byte_is_read(self):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(frame(2)[:2])

            def rest():
                for byte in frame(2)[2:] + b"{}":
                    ours.sendall(bytes([byte]))

            sender = threading.Thread(target=rest)
            sender.start()
            assert Channel(theirs).receive() == ({}, None)
            sender.join()

    def test_an_end_anywhere_in_a_message_is_an_end(self, subtests: pytest.Subtests) -> None:
        for bytes_before in [b"", frame(10)[:3], frame(10), frame(10) + b'{"a"']:
            with subtests.test(str(bytes_before)):
                ours, theirs = socket.socketpair()
                with theirs:
                    ours.sendall(bytes_before)
                    ours.close()
                    with pytest.raises(EOFError):
                        Channel(theirs).receive()

    def test_an_end_with_unread_data_on_the_other_side_is_an_end(self, ends):
        ends[0].send({"never": "read"})
        ends[1].close()
        with pytest.raises(EOFError):
            ends[0].receive()

    def test_sending_to_a_closed_end_is_a_broken_pipe(self, ends):
        ends[1].close()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            ends[0].send({"n": 1})

    def test_a_descriptor_arrives_with_its_message(self, ends):
        fd = anonymous_file("test")
        os.write(fd, b"content")
        ends[0].send({"n": 1})
        ends[0].send({"n": 2}, fd)
        ends[0].send({"n": 3})
        os.close(fd)
        first, second, third = (ends[1].receive() for _ in range(3))
        assert (first[1], third[1]) == (None, None)
        assert os.pread(second[1], 100, 0) == b"content"
        os.close(second[1])

    def test_a_received_descriptor_is_not_inherited(self, ends):
        with open(os.devnull) as file:  # noqa: PTH123
            ends[0].send({}, file.fileno())
        _, fd = ends[1].receive()
        inheritable = os.get_inheritable(fd)
        os.close(fd)
        assert not inheritable

    def test_a_descriptor_beyond_the_limit_of_open_files_is_an_error(self, ends):
        """The rest of the message would look like a message without a descriptor."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        with open(os.devnull) as file:  # noqa: PTH123
            ends[0].send({}, file.fileno())
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                ends[1].receive()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_a_descriptor_of_a_message_that_ends_early_is_closed(self):
        before = descriptors()
        ours, theirs = socket.socketpair()
        with theirs, open(os.devnull) as file:  # noqa: PTH123
            socket.send_fds(ours, [frame(10, 1)], [file.fileno()])
            ours.close()
            with pytest.raises(EOFError):
                Channel(theirs).receive()
        assert descriptors() <= before


class TestIntact:
    def test_a_channel_is_intact_until_it_is_closed(self, ends):
        assert ends[0].intact
        ends[0].close()
        assert not ends[0].intact

    def test_a_channel_whose_descriptor_was_closed_is_not_intact(self, ends):
        os.close(ends[0].fileno())
        assert not ends[0].intact

    def test_a_channel_whose_descriptor_became_another_file_or_socket_is_not_intact(self, ends):
        a, b = socket.socketpair()
        with a, b, open(os.devnull) as file:  # noqa: PTH123
            for end, other in zip(ends, (file, a), strict=True):
                os.dup2(other.fileno(), end.fileno())
                assert not end.intact


class TestProgressPage:
    @pytest.fixture
    def pages(self):
        """Return the parent's page and the child's view of the same memory."""
        page, fd = ProgressPage.create()
        child = ProgressPage(fd)
        os.close(fd)
        return page, child

    def test_on_a_new_page_nothing_runs_and_no_stop_is_requested(self, pages):
        assert [page.running() for page in pages] == [None, None]
        assert [page.stop_asked for page in pages] == [False, False]

    @pytest.mark.parametrize("step", [Step(0, 0), Step(3, 7), Step(2**31 - 1, 2**32 - 1)])
    def test_the_parent_sees_what_the_child_runs_and_since_when(self, pages, step):
        parent, child = pages
        before = monotonic()
        child.begin(*step)
        running = parent.running()
        assert (running.step, running.returned_at) == (step, 0.0)
        assert before <= running.since <= monotonic()

    def test_the_parent_sees_that_the_model_has_returned(self, pages):
        parent, child = pages
        child.begin(1, 2)
        child.returned()
        assert parent.running().since <= parent.running().returned_at <= monotonic()
        child.finished()
        assert parent.running()[::2] == (Step(1, 2), math.inf)
        child.begin(1, 3)
        assert parent.running().returned_at == 0.0

    def test_the_parent_sees_that_the_child_is_idle_again(self, pages):
        parent, child = pages
        child.begin(1, 2)
        child.idle()
        assert parent.running() is None

    def test_the_child_sees_a_request_to_stop(self, pages):
        parent, child = pages
        child.begin(1, 2)
        parent.ask_to_stop()
        child.begin(1, 3)
        assert child.stop_asked
        assert parent.running().step == Step(1, 3)


def test_an_anonymous_file_has_no_path_and_is_not_inherited():
    fd = anonymous_file("mops-test")
    try:
        assert os.fstat(fd).st_nlink == 0
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)
