package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/push"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/callreceipt/reconciler/internal/printable"
)

const (
	pushLimit     = 10 * time.Second
	maxPushAnswer = 1 << 10 // bytes of a refusal that are shown
)

// WriteTextfile writes our own metrics to path, for the textfile collector of node_exporter; the name must end in .prom, or
// node_exporter does not read it. The file is replaced in one step, so a reader sees the old one or the new one.
func WriteTextfile(path string, g prometheus.Gatherer) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing metrics to %s: %w", path, err)
		}
	}()
	if filepath.Ext(path) != ".prom" {
		return errors.New("the name does not end in .prom, and node_exporter would not read it")
	}
	families, err := ours(g).Gather()
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".tmp-*")
	if err != nil {
		return err
	}
	if err := writeText(tmp, families); err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// writeText fills f, down to the disk, and closes it.
func writeText(f *os.File, families []*dto.MetricFamily) error {
	fill := func() error {
		for _, family := range families {
			if _, err := expfmt.MetricFamilyToText(f, family); err != nil {
				return err
			}
		}
		if err := f.Chmod(0o644); err != nil { // node_exporter runs as another user
			return err
		}
		return f.Sync()
	}
	return errors.Join(fill(), f.Close())
}

// Push hands our own metrics to the Pushgateway at address, an http or https URL without /metrics/job, as job "reconciler". It
// replaces what was pushed before under the same metric names, and takes at most ten seconds.
func Push(ctx context.Context, address string, g prometheus.Gatherer) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		// The address itself is not shown: it may hold a password.
		return errors.New("pushing metrics: the Pushgateway must be given as an http or https URL, such as http://pushgateway:9091")
	}
	ctx, cancel := context.WithTimeout(ctx, pushLimit)
	defer cancel()
	user := u.User
	u.User = nil // into a header, so that it stands in no error
	pusher := push.New(u.String(), "reconciler").Gatherer(ours(g)).Client(gateway{})
	if user != nil {
		password, _ := user.Password() // a name alone has an empty one
		pusher.BasicAuth(user.Username(), password)
	}
	if err := pusher.AddContext(ctx); err != nil {
		return fmt.Errorf("pushing metrics to %s: %w", u, err)
	}
	return nil
}

// gateway sends one request, follows no redirect (a POST would become a GET and come back as good), and makes a refusal a short
// error.
type gateway struct{}

func (gateway) Do(r *http.Request) (*http.Response, error) {
	client := &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(r)
	if err != nil || resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusAccepted {
		return resp, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxPushAnswer)) // what could be read is shown
	return nil, fmt.Errorf("the answer is %d: %s", resp.StatusCode, printable.Text(strings.TrimSpace(string(text))))
}

// ours leaves out what the Go runtime, the process and the connection pool tell: of a process that is about to end they say
// nothing, and node_exporter has metrics of the same names.
func ours(g prometheus.Gatherer) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := g.Gather()
		if err != nil {
			return nil, fmt.Errorf("gathering metrics: %w", err)
		}
		foreign := func(f *dto.MetricFamily) bool { return !strings.HasPrefix(f.GetName(), "reconciler_") }
		return slices.DeleteFunc(all, foreign), nil
	})
}
