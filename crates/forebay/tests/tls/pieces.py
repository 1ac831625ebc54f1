import socket, ssl, sys, time
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
s = context.wrap_socket(socket.create_connection(('127.0.0.1', int(sys.argv[1]))))
if len(sys.argv) > 2: s.sendall(b'GET / HTTP/1.1\r\nHost: h\r\n\r\n')
got = b''
while len(sys.argv) > 2 and not got.endswith(b'whole'): got += s.recv(4096)
s = socket.socket(fileno=s.detach())
s.settimeout(0.1)
end = time.monotonic() + 15
rest = iter(b'\x17\x03\x03\x40' + bytes(1000))
while True:
    assert time.monotonic() < end, 'it is still open'
    try:
        if not s.recv(4096): break
    except TimeoutError: s.send(bytes([next(rest)]))
    except ConnectionError: break
