import socket, ssl, struct, sys, time
port, pause = int(sys.argv[1]), float(sys.argv[2])
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.set_alpn_protocols(['h2'])
def frame(kind, flags, stream, payload):
    return struct.pack('>IBI', len(payload) << 8 | kind, flags, stream) + payload
def literal(text): return bytes([len(text)]) + text.encode()
def read(reader, length):
    got = b''
    while len(got) < length:
        time.sleep(pause)
        piece = reader.read(min(2048, length - len(got)))
        assert piece, 'the connection has ended'
        got += piece
    return got
for size in map(int, sys.argv[3:]):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    s.settimeout(20)
    s.connect(('127.0.0.1', port))
    s = context.wrap_socket(s)
    get = b'\x82\x87\x04' + literal(f'/{size}') + b'\x41' + literal('h')
    s.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + frame(4, 0, 0, b'') + frame(1, 5, 1, get))
    reader, content, ended = s.makefile('rb'), 0, False
    while not ended:
        head, flags, stream = struct.unpack('>IBI', read(reader, 9))
        payload = read(reader, head >> 8)
        content += len(payload) if head & 255 == 0 else 0
        ended = stream == 1 and flags & 1 != 0
    assert content == size, (content, size)
