package receipt

import (
	"compress/flate"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/callreceipt/reconciler/internal/printable"
)

// onWire tells whether a kind stands for an exchange that was cut off, which our own caller may have done.
func onWire(k Kind) bool {
	return k == KindRefused || k == KindDNS || k == KindTLS || k == KindTimeout || k == KindLost
}

// onFailure is a trace hook that remembers a failed TLS handshake. Most errors of crypto/tls have no type.
func onFailure(failed *atomic.Bool) func(tls.ConnectionState, error) {
	return func(_ tls.ConnectionState, err error) {
		if err != nil {
			failed.Store(true)
		}
	}
}

// wireKind names the trouble of an exchange without an answer.
func wireKind(err error, badHandshake bool) Kind {
	var (
		dns   *net.DNSError
		op    *net.OpError
		timed net.Error
	)
	switch {
	case errors.As(err, &dns):
		return KindDNS
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timed) && timed.Timeout():
		return KindTimeout
	case errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect"):
		return KindRefused
	case isLost(err):
		return KindLost
	case badHandshake, op != nil && (op.Op == "remote error" || op.Op == "local error"): // Op of a TLS alert
		return KindTLS
	default:
		return KindLost
	}
}

// bodyKind names the trouble of an answer whose body could not be read to its end.
func bodyKind(err error) Kind {
	var corrupt flate.CorruptInputError
	if errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.As(err, &corrupt) {
		return KindMalformed
	}
	return wireKind(err, false)
}

func isLost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// statusError says what a status means that is not the one wanted.
func statusError(code int, header http.Header, now time.Time) *Error {
	e := &Error{Kind: KindStatus, Status: code}
	hint := ""
	switch {
	case code == http.StatusBadRequest || code == http.StatusUnprocessableEntity:
		e.Outcome = BadBatch
	case code == http.StatusRequestEntityTooLarge:
		e.Outcome, e.Kind = BadBatch, KindTooLarge
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		e.Outcome, hint = Misconfigured, ", check the bearer token"
	case code == http.StatusNotFound:
		e.Outcome, hint = Misconfigured, ", check the URL"
	case code >= 300 && code <= 399:
		e.Outcome, hint = Misconfigured, ", redirects to "+locationHost(header)+" and redirects are refused: configure the final URL"
	case code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable:
		if pause := retryAfter(header.Get("Retry-After"), now); pause > 0 {
			e.Outcome, e.RetryAfter, hint = Throttled, pause, ", retry after "+pause.Round(time.Second).String()
		}
	}
	e.Err = errors.New(strings.TrimSpace(fmt.Sprintf("%d %s", e.Status, http.StatusText(e.Status))) + hint)
	return e
}

// locationHost names where a redirect leads, without path and query, which may hold secrets.
func locationHost(header http.Header) string {
	u, err := url.Parse(header.Get("Location"))
	switch {
	case err != nil:
		return "an unreadable Location"
	case u.Host == "":
		return "the same host"
	default:
		return printable.Quote(u.Host)
	}
}

// retryAfter reads the header of that name: seconds, or a date after now. The pause is at most MaxRetryAfter,
// and not above 0 when the header asks for none.
func retryAfter(header string, now time.Time) time.Duration {
	if header != "" && strings.Trim(header, "0123456789") == "" {
		seconds, err := strconv.ParseInt(header, 10, 64)
		if err != nil || seconds > int64(MaxRetryAfter/time.Second) {
			return MaxRetryAfter // also for a number too long for 64 bits
		}
		return time.Duration(seconds) * time.Second
	}
	date, err := http.ParseTime(header)
	if err != nil {
		return 0
	}
	return min(date.Sub(now), MaxRetryAfter)
}
