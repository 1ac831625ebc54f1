package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"
)

// updates says when quic-go updates its keys, which it does after the first 100 packets.
type updates struct{}

func (updates) AddProducer() qlogwriter.Recorder { return updates{} }
func (updates) SupportsSchemas(string) bool      { return true }
func (updates) Close() error                     { return nil }
func (updates) RecordEvent(event qlogwriter.Event) {
	if update, ok := event.(qlog.KeyUpdated); ok && update.KeyPhase > 0 {
		fmt.Println("key update")
	}
}

// answer returns the hash of what is posted, and files of the directory otherwise.
func answer(dir string) http.HandlerFunc {
	files := http.FileServer(http.Dir(dir))
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			files.ServeHTTP(w, r)
			return
		}
		sum := sha256.New()
		if _, err := io.Copy(sum, r.Body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, hex.EncodeToString(sum.Sum(nil)))
	}
}

// serve is the server of the second table. See ../README.md for what it is called with.
func serve(name, address, dir string) {
	udp, err := net.ResolveUDPAddr("udp", address)
	check(err)
	socket, err := net.ListenUDP("udp", udp)
	check(err)
	file := dir + "/cert.pem"
	if name == "resumption" || name == "amplificationlimit" {
		file = dir + "/large.pem"
	}
	certificate, err := tls.LoadX509KeyPair(file, dir+"/key.pem")
	check(err)
	conf := http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13})
	t := quic.Transport{Conn: socket}
	if name == "retry" {
		t.VerifySourceAddress = func(net.Addr) bool { return true }
	}
	listener, err := t.ListenEarly(conf, &quic.Config{
		Tracer: func(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return updates{} },
	})
	check(err)
	server := http3.Server{Handler: answer(dir + "/html")}
	check(server.ServeListener(listener))
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
