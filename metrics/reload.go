package metrics

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"

	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/internal/secretfile"
)

// reloader answers POST /-/reload for whoever is on this machine, or knows the token.
type reloader struct {
	reload    func() error
	tokenFile string
	log       *slog.Logger
}

func (rl *reloader) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := rl.allow(r); err != nil {
		rl.log.Warn("a reload was refused", "remote", r.RemoteAddr, "error", err)
		plain(w, http.StatusForbidden, err.Error()+"\n")
		return
	}
	if err := rl.reload(); err != nil {
		plain(w, http.StatusInternalServerError, "not reloaded, what was in force stays in force:\n"+lines(err)+"\n")
		return
	}
	plain(w, http.StatusOK, "reloaded\n")
}

var (
	errBrowser = errors.New("a reload cannot be asked for from a web page: use curl -X POST, or send SIGHUP")
	errRemote  = errors.New("a reload may be asked for from the machine itself, or with the bearer token that is configured for it")
	errToken   = errors.New("the bearer token is not the one that is configured for reloads")
)

// allow says why a request may not reload, or nil. Its errors are shown to whoever asked, so no file stands in them.
func (rl *reloader) allow(r *http.Request) error {
	// Only browsers send these. A page of another origin can post to this address too, and one whose name was made to resolve
	// to it even counts as the same origin: no page may do it.
	if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
		return errBrowser
	}
	if given, ok := bearer(r); ok && rl.tokenFile != "" {
		want, err := secretfile.ReadToken(rl.tokenFile)
		if err != nil {
			rl.log.Error("the token for reloads cannot be read", "file", rl.tokenFile, "error", err)
			return errToken
		}
		if !equal(given, want) {
			return errToken
		}
		return nil
	}
	if onThisMachine(r) {
		return nil
	}
	return errRemote
}

// onThisMachine reports that the request came over a loopback address, and not through a proxy that would lend its own.
func onThisMachine(r *http.Request) bool {
	for _, header := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if r.Header.Get(header) != "" {
			return false
		}
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && from.Addr().IsLoopback()
}

func bearer(r *http.Request) (token string, ok bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), strings.EqualFold(scheme, "Bearer")
}

// equal compares in a time that tells nothing about where or how far two tokens differ, nor about their lengths.
func equal(given, want string) bool {
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// lines keeps the lines of an error, which may list many problems, and escapes everything else that is not to be seen.
func lines(err error) string {
	all := strings.Split(err.Error(), "\n")
	for i, line := range all {
		all[i] = printable.Text(line)
	}
	return strings.Join(all, "\n")
}
