package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

const (
	closeLimit = 10 * time.Second
	backlog    = 1024 // connections that wait to be accepted
)

// service is an HTTP server on a free port of 127.0.0.1.
type service struct {
	url    string
	name   string   // for errors
	port   *os.File // a socket that is bound, until somebody listens
	server *http.Server
	served chan error
}

// bind takes a free port at which nobody listens yet, so that connections to it are refused.
func bind(name string, handler http.Handler) (*service, error) {
	port, url, err := freePort()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return &service{
		url: url, name: name, port: port, served: make(chan error, 1),
		server: &http.Server{
			Handler: handler, ReadHeaderTimeout: closeLimit, ErrorLog: log.New(io.Discard, "", 0), // it would tell of every lost connection
		},
	}, nil
}

// serve binds and listens.
func serve(name string, handler http.Handler) (*service, error) {
	s, err := bind(name, handler)
	if err != nil {
		return nil, err
	}
	if err := s.listen(); err != nil {
		return nil, errors.Join(err, s.port.Close())
	}
	return s, nil
}

// listen opens the port, once.
func (s *service) listen() error {
	listener, err := listenAt(s.port)
	if err != nil {
		return fmt.Errorf("starting %s: %w", s.name, err)
	}
	_ = s.port.Close()
	s.port = nil
	go func() { s.served <- s.server.Serve(listener) }()
	return nil
}

// close waits for the handlers, those without a caller as well.
func (s *service) close(ctx context.Context) error {
	if s.port != nil {
		return s.port.Close()
	}
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

// freePort binds a socket and does not listen: nobody else gets the port, and connections to it are refused. Package net knows
// no such state.
func freePort() (socket *os.File, url string, err error) {
	syscall.ForkLock.RLock() // no child may inherit the socket
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, "", os.NewSyscallError("socket", err)
	}
	socket = os.NewFile(uintptr(fd), "port")
	if err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		_ = socket.Close()
		return nil, "", os.NewSyscallError("bind", err)
	}
	bound, err := syscall.Getsockname(fd)
	at, ok := bound.(*syscall.SockaddrInet4)
	if err != nil || !ok {
		_ = socket.Close()
		return nil, "", os.NewSyscallError("getsockname", err)
	}
	return socket, fmt.Sprintf("http://127.0.0.1:%d", at.Port), nil
}

func listenAt(socket *os.File) (net.Listener, error) {
	if err := syscall.Listen(int(socket.Fd()), backlog); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	return net.FileListener(socket) // a duplicate
}
