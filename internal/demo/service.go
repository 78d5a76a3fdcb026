package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

const closeLimit = 10 * time.Second

// service is an HTTP server on a free port of 127.0.0.1.
type service struct {
	url    string
	name   string // for errors
	server *http.Server
	served chan error
}

func serve(ctx context.Context, name string, handler http.Handler) (*service, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	s := &service{
		url: "http://" + listener.Addr().String(), name: name, served: make(chan error, 1),
		server: &http.Server{
			Handler: handler, ReadHeaderTimeout: closeLimit, ErrorLog: log.New(io.Discard, "", 0), // it would tell of every lost connection
		},
	}
	go func() { s.served <- s.server.Serve(listener) }()
	return s, nil
}

// close waits for the handlers, those without a caller as well.
func (s *service) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	err := s.server.Shutdown(ctx)
	if served := <-s.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	if err != nil {
		return fmt.Errorf("stopping %s: %w", s.name, err)
	}
	return nil
}
