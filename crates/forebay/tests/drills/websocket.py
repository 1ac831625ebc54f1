import asyncio, sys, websockets
async def echo(ws):
    async for m in ws: await ws.send(m)
async def main(own, front):
    async with websockets.serve(echo, '127.0.0.1', own, max_size=None):
        uri = f'ws://127.0.0.1:{front}/ws'
        async with websockets.connect(uri, max_size=None) as ws:
            for m in ['hello', 'x' * 100000, b'y' * 3000000]:
                await ws.send(m)
                assert await ws.recv() == m
            await ws.ping()
asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
