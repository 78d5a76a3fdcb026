package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// The bounds of the server. Who asks is a probe, Prometheus, or a person: small requests, few at once.
const (
	maxScrapes     = 4 // at once; a fifth is told to come again
	scrapeLimit    = 10 * time.Second
	headerLimit    = 5 * time.Second
	readLimit      = 10 * time.Second
	writeLimit     = 30 * time.Second
	idleLimit      = 2 * time.Minute // longer than the usual interval between scrapes, so that their connection is kept
	shutdownLimit  = 5 * time.Second
	maxHeaderBytes = 16 << 10
)

// HandlerConfig is what the HTTP endpoints show and do.
type HandlerConfig struct {
	Gatherer prometheus.Gatherer
	Checks   []Check // what /readyz asks
	Pprof    bool    // serve profiles under /debug/pprof/
	// Reload reads the configuration again, at POST /-/reload; nil leaves the path out. Several requests may call it at once,
	// and it goes on when the one who asked hangs up.
	Reload func() error
	// ReloadTokenFile holds the bearer token with which another machine may ask for a reload. It is read at each such request.
	// Empty: only this machine may ask.
	ReloadTokenFile string
	Log             *slog.Logger
	Now             func() time.Time
}

// Handler serves /metrics, /livez and /readyz, and what else cfg asks for. /livez touches nothing: a process that can answer
// lives, and restarting it would not bring a database back.
func Handler(cfg HandlerConfig) http.Handler {
	mux := http.NewServeMux()
	paths := []string{"/metrics", "/livez", "/readyz", "/readyz?verbose"}
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelError),
		// What can be gathered is served: one broken collector must not blind every alert.
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
		Timeout:             scrapeLimit,
		EnableOpenMetrics:   true,
	}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok\n") })
	mux.Handle("GET /readyz", newReadiness(cfg.Checks, cfg.Now))
	if cfg.Pprof {
		serveProfiles(mux, cfg.Now)
		paths = append(paths, "/debug/pprof/")
	}
	if cfg.Reload != nil {
		mux.Handle("POST /-/reload", &reloader{reload: cfg.Reload, tokenFile: cfg.ReloadTokenFile, log: cfg.Log})
		paths = append(paths, "/-/reload (POST)")
	}
	index := "reconciler\n\n" + strings.Join(paths, "\n") + "\n"
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, index) })
	return mux
}

// plain answers with text that no browser takes for anything else, and that nobody keeps.
func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // whoever has hung up misses nothing
}

// Serve answers requests on l until ctx ends. Requests in hand may then go on for five seconds. It returns nil after that, and
// an error when l fails before. It closes l.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerLimit,
		ReadTimeout:       readLimit,
		WriteTimeout:      writeLimit,
		IdleTimeout:       idleLimit,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	stopped := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownLimit)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close() // cuts off who did not end in time
		}
	})
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		unhook()
		return fmt.Errorf("serving HTTP on %s: %w", l.Addr(), err)
	}
	<-stopped
	return nil
}
