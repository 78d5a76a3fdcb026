package receipt

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/callreceipt/reconciler/internal/printable"
)

// Config is what a Client needs to know of its downstream.
type Config struct {
	URL             string        // of the receipt endpoint, http or https, required
	Timeout         time.Duration // of the whole exchange, from connecting to the last byte of the body, required
	BearerTokenFile string        // read for each request, so that the token can be replaced; optional
	CAFile          string        // PEM certificates that are trusted besides those of the system; optional
	MaxBytes        int64         // the largest answer that is read, decompressed; 0 means DefaultBytes
	MaxItems        int           // the most receipts in one answer; 0 means DefaultItems
	Concurrency     int           // requests in flight, for which connections are kept open; 0 means 1
	// FreshConnections gives each request a connection of its own. A kept one may be dead, and then nobody can tell whether
	// the request arrived: no matter for a question, a spent attempt for a send.
	FreshConnections bool
}

// The default of Config.MaxBytes and the most it may be; the body is held in memory.
const (
	DefaultBytes = 8 << 20
	mostBytes    = 1 << 30
)

const maxHeaderBytes = 64 << 10

// NewClient checks cfg, names the first value that is wrong, and connects to nothing.
func NewClient(cfg Config) (*Client, error) {
	u, err := parseURL(cfg.URL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("Config.URL: %w", err)
	case u.User != nil && cfg.BearerTokenFile != "":
		return nil, fmt.Errorf("Config.URL and BearerTokenFile: the URL holds user information and %q a token, give one of them", cfg.BearerTokenFile)
	case cfg.Timeout <= 0:
		return nil, fmt.Errorf("Config.Timeout: %s, must be above 0", cfg.Timeout)
	case cfg.MaxBytes < 0 || cfg.MaxBytes > mostBytes:
		return nil, fmt.Errorf("Config.MaxBytes: %d, must be from 0 (%d) to %d", cfg.MaxBytes, DefaultBytes, mostBytes)
	case cfg.MaxItems < 0:
		return nil, fmt.Errorf("Config.MaxItems: %d, must not be negative", cfg.MaxItems)
	case cfg.Concurrency < 0:
		return nil, fmt.Errorf("Config.Concurrency: %d, must not be negative", cfg.Concurrency)
	}
	roots, err := trusted(cfg.CAFile)
	if err != nil {
		return nil, fmt.Errorf("Config.CAFile: %w", err)
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = DefaultBytes
	}
	connections := max(1, cfg.Concurrency)
	return &Client{
		url:       u,
		shown:     oneLine(u.Scheme+"://"+u.Host+u.EscapedPath(), maxText/2),
		timeout:   cfg.Timeout,
		tokenFile: cfg.BearerTokenFile,
		maxBytes:  cfg.MaxBytes,
		limits:    Limits{Items: cfg.MaxItems},
		now:       time.Now, //nolint:forbidigo // the default of now
		transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: cfg.Timeout}).DialContext,
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    cfg.Timeout,
			ForceAttemptHTTP2:      true, // off by default once there is a TLSClientConfig
			DisableKeepAlives:      cfg.FreshConnections,
			MaxIdleConns:           connections,
			MaxIdleConnsPerHost:    connections,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: maxHeaderBytes,
		},
	}, nil
}

// parseURL never quotes the text it refuses, since that may hold a password.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return nil, errors.New("is missing")
	case err != nil:
		return nil, errors.New("is not a URL (not shown, it may hold a password)")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("has the scheme %s, must be http or https", printable.Quote(u.Scheme))
	case u.Hostname() == "":
		return nil, errors.New("names no host")
	case u.Fragment != "":
		return nil, errors.New("has a fragment (#…), which is never sent")
	}
	return u, nil
}

// trusted returns the certificates of the system and those of the file; nil means the system's alone.
func trusted(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // a nil pool is what crypto/tls takes for the system's roots
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // a system without a store still trusts the file
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%q holds no PEM certificate", file)
	}
	return pool, nil
}
