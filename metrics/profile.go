package metrics

import (
	"fmt"
	"io"
	"net/http"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"strings"
	"time"
)

// maxProfile bounds how long a profile or a trace is taken, in seconds.
const maxProfile = 300

// serveProfiles serves what `go tool pprof` and `go tool trace` ask for. net/http/pprof is not used, as importing it registers
// its handlers in http.DefaultServeMux, for whoever serves that.
func serveProfiles(mux *http.ServeMux, now func() time.Time) {
	mux.HandleFunc("GET /debug/pprof/{$}", func(w http.ResponseWriter, _ *http.Request) {
		paths := []string{"profile?seconds=30", "trace?seconds=5"}
		for _, p := range pprof.Profiles() {
			paths = append(paths, p.Name(), p.Name()+"?debug=1")
		}
		plain(w, http.StatusOK, "/debug/pprof/"+strings.Join(paths, "\n/debug/pprof/")+"\n")
	})
	mux.HandleFunc("GET /debug/pprof/profile", record(30*time.Second, now, pprof.StartCPUProfile, pprof.StopCPUProfile))
	mux.HandleFunc("GET /debug/pprof/trace", record(time.Second, now, trace.Start, trace.Stop))
	mux.HandleFunc("GET /debug/pprof/{name}", snapshot)
}

// snapshot writes a profile of what there is now.
func snapshot(w http.ResponseWriter, r *http.Request) {
	p := pprof.Lookup(r.PathValue("name"))
	if p == nil {
		plain(w, http.StatusNotFound, "no such profile; GET /debug/pprof/ lists them\n")
		return
	}
	debug, _ := strconv.Atoi(r.URL.Query().Get("debug")) // not a number: 0, the binary form
	if debug == 0 {
		binary(w, p.Name())
	} else {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	_ = p.WriteTo(w, debug) // whoever has hung up misses nothing
}

// record writes what happens during ?seconds=.
func record(usual time.Duration, now func() time.Time, start func(io.Writer) error, stop func()) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		lasts := usual
		if s := r.URL.Query().Get("seconds"); s != "" {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 || n > maxProfile {
				plain(w, http.StatusBadRequest, fmt.Sprintf("seconds must be a whole number from 1 to %d\n", maxProfile))
				return
			}
			lasts = time.Duration(n) * time.Second
		}
		// It takes longer than an answer otherwise may. Without a deadline to move there is none to be missed.
		_ = http.NewResponseController(w).SetWriteDeadline(now().Add(lasts + writeLimit))
		binary(w, "profile")
		if err := start(w); err != nil {
			w.Header().Del("Content-Disposition")
			plain(w, http.StatusConflict, err.Error()+"\n") // somebody else is at it
			return
		}
		defer stop()
		timer := time.NewTimer(lasts)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}
	}
}

func binary(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
}
