// Client of the interoperability matrix on quic-go. See ../README.md for what it is called with.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"
)

// Longest time of a case, of which some have connections that take long.
const deadline = 5 * time.Minute

var errUnsupported = errors.New("unsupported")

type file struct{ path, hash string }

// client is what connections of a case share.
type client struct {
	address *net.UDPAddr
	tls     *tls.Config
	quic    *quic.Config
	updates atomic.Int32
}

// The rest of qlogwriter's interfaces: counts updates of keys.
func (c *client) AddProducer() qlogwriter.Recorder { return c }
func (c *client) SupportsSchemas(string) bool      { return true }
func (c *client) Close() error                     { return nil }
func (c *client) RecordEvent(event qlogwriter.Event) {
	if update, ok := event.(qlog.KeyUpdated); ok && update.KeyPhase > 0 {
		c.updates.Add(1)
	}
}

// tickets tells when a ticket has come.
type tickets struct {
	tls.ClientSessionCache
	came chan struct{}
}

func (t tickets) Put(key string, state *tls.ClientSessionState) {
	t.ClientSessionCache.Put(key, state)
	if state != nil {
		select {
		case t.came <- struct{}{}:
		default:
		}
	}
}

// transport makes a socket of the server's family of addresses.
func (c *client) transport() (*quic.Transport, error) {
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: c.address.IP})
	return &quic.Transport{Conn: socket}, err
}

// dial connects; early connections are usable before the handshake has ended.
func (c *client) dial(ctx context.Context, early bool) (*quic.Conn, error) {
	t, err := c.transport()
	if err != nil {
		return nil, err
	}
	if early {
		return t.DialEarly(ctx, c.address, c.tls, c.quic)
	}
	return t.Dial(ctx, c.address, c.tls, c.quic)
}

func fetch(ctx context.Context, h *http3.ClientConn, f file, method string, started func()) error {
	req, err := http.NewRequestWithContext(ctx, method, "https://localhost"+f.path, nil)
	if err != nil {
		return err
	}
	res, err := h.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != 200 {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	sum := sha256.New()
	if started != nil {
		if _, err := io.CopyN(sum, res.Body, 100_000); err != nil {
			return err
		}
		started()
	}
	n, err := io.Copy(sum, res.Body)
	if err == nil && hex.EncodeToString(sum.Sum(nil)) != f.hash {
		err = fmt.Errorf("%d bytes with another content", n)
	}
	return err
}

// fetchAll downloads files at the same time.
func fetchAll(ctx context.Context, h *http3.ClientConn, files []file) error {
	var wait sync.WaitGroup
	errs := make([]error, len(files))
	for i, f := range files {
		wait.Go(func() { errs[i] = fetch(ctx, h, f, http.MethodGet, nil) })
	}
	wait.Wait()
	return errors.Join(errs...)
}

func h3(conn *quic.Conn) *http3.ClientConn {
	return (&http3.Transport{DisableCompression: true}).NewClientConn(conn)
}

// once connects, downloads and closes.
func (c *client) once(ctx context.Context, files []file) (quic.ConnectionState, error) {
	conn, err := c.dial(ctx, false)
	if err != nil {
		return quic.ConnectionState{}, err
	}
	defer conn.CloseWithError(0x100, "")
	err = fetchAll(ctx, h3(conn), files)
	return conn.ConnectionState(), err
}

func (c *client) run(ctx context.Context, name string, files []file) error {
	switch name {
	case "handshake", "retry", "multiplexing", "http3", "ecn":
		_, err := c.once(ctx, files)
		return err
	case "multiconnect":
		for _, f := range files {
			if _, err := c.once(ctx, []file{f}); err != nil {
				return err
			}
		}
		return nil
	case "transfer":
		c.quic.InitialStreamReceiveWindow, c.quic.MaxStreamReceiveWindow = 1<<15, 1<<16
		c.quic.InitialConnectionReceiveWindow, c.quic.MaxConnectionReceiveWindow = 1<<15, 1<<17
		_, err := c.once(ctx, files)
		return err
	case "v2":
		c.quic.Versions = []quic.Version{quic.Version2}
		state, err := c.once(ctx, files)
		if err == nil && state.Version != quic.Version2 {
			err = errors.New("another version")
		}
		return err
	case "chacha20":
		// Go prefers it on machines without AES: see `GODEBUG` in ../run.py.
		state, err := c.once(ctx, files)
		if err == nil && state.TLS.CipherSuite != tls.TLS_CHACHA20_POLY1305_SHA256 {
			err = errors.New("the server chose " + tls.CipherSuiteName(state.TLS.CipherSuite))
		}
		return err
	case "resumption", "zerortt":
		return c.again(ctx, name == "zerortt", files)
	case "keyupdate":
		// quic-go updates its keys after the first 100 packets.
		_, err := c.once(ctx, files)
		if err == nil && c.updates.Load() == 0 {
			err = errors.New("no update")
		}
		return err
	case "migration":
		return c.migrate(ctx, files[0])
	}
	return errUnsupported
}

// again makes a connection and another that resumes its session.
func (c *client) again(ctx context.Context, early bool, files []file) error {
	came := make(chan struct{}, 1)
	c.tls.ClientSessionCache = tickets{tls.NewLRUClientSessionCache(4), came}
	conn, err := c.dial(ctx, false)
	if err != nil {
		return err
	}
	if err := fetchAll(ctx, h3(conn), files[:1]); err != nil {
		return err
	}
	select {
	case <-came:
	case <-ctx.Done():
		return errors.New("no ticket")
	}
	conn.CloseWithError(0x100, "")
	conn, err = c.dial(ctx, early)
	if err != nil {
		return err
	}
	defer conn.CloseWithError(0x100, "")
	method := http.MethodGet
	if early {
		method = http3.MethodGet0RTT
	}
	if err := fetch(ctx, h3(conn), files[1], method, nil); err != nil {
		return err
	}
	state := conn.ConnectionState()
	if !state.TLS.DidResume {
		return errors.New("the session was not resumed")
	}
	if early && !state.Used0RTT {
		return errors.New("the server took no early data")
	}
	return nil
}

// migrate goes on from another port in the middle of a download.
func (c *client) migrate(ctx context.Context, f file) error {
	conn, err := c.dial(ctx, false)
	if err != nil {
		return err
	}
	defer conn.CloseWithError(0x100, "")
	var moved error
	err = fetch(ctx, h3(conn), f, http.MethodGet, func() {
		t, err := c.transport()
		if err != nil {
			moved = err
			return
		}
		path, err := conn.AddPath(t)
		if err == nil {
			err = path.Probe(ctx)
		}
		if err == nil {
			err = path.Switch()
		}
		moved = err
	})
	return errors.Join(moved, err)
}

func main() {
	if os.Args[1] == "server" {
		serve(os.Args[2], os.Args[3], os.Args[4])
		return
	}
	name, address := os.Args[1], os.Args[2]
	var files []file
	for _, arg := range os.Args[3:] {
		at := strings.LastIndexByte(arg, '=')
		files = append(files, file{arg[:at], arg[at+1:]})
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	udp, err := net.ResolveUDPAddr("udp", address)
	if err == nil {
		c := &client{address: udp}
		c.tls = &tls.Config{InsecureSkipVerify: true, ServerName: "localhost", NextProtos: []string{"h3"}}
		c.quic = &quic.Config{Tracer: func(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return c }}
		err = c.run(ctx, name, files)
	}
	if errors.Is(err, errUnsupported) {
		os.Exit(127)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
