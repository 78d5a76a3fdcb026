package receipt

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	patient = 20 * time.Second       // for exchanges that must come to an end by themselves
	hasty   = 100 * time.Millisecond // for those that never would
)

func client(t *testing.T, cfg Config) *Client {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = patient
	}
	c, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // until then the server does not notice that the client has gone
		r.Body = io.NopCloser(bytes.NewReader(body))
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// refused asserts that a query brought nothing but the error expected.
func refused(t *testing.T, a Answer, err error, outcome Outcome, kind Kind) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got %+v, %v, want an *Error", a, err)
	}
	if e.Outcome != outcome || e.Kind != kind {
		t.Errorf("got outcome %d kind %s, want %d %s: %v", e.Outcome, e.Kind, outcome, kind, err)
	}
	if a.Of != nil || a.Unasked != 0 {
		t.Errorf("evidence beside an error: %+v", a)
	}
	if text := err.Error(); len(text) > maxText+40 || strings.ContainsAny(text, "\n\r\x1b") {
		t.Errorf("not one short line: %q", text)
	}
	if (e.Outcome == Throttled) != (e.RetryAfter > 0) || e.RetryAfter > MaxRetryAfter {
		t.Errorf("outcome %d, retry after %s", e.Outcome, e.RetryAfter)
	}
}

func TestAQueryIsOneRequestThatSaysWhoAsks(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, "s3cret-1\n")
	var got []string
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = append(got, r.Method+" "+r.URL.String()+" "+string(body)+" "+r.Header.Get("Content-Type")+" "+
			r.Header.Get("Accept")+" "+r.Header.Get("User-Agent")+" "+r.Header.Get("Authorization"))
		_, _ = io.WriteString(w, answerOf(item()))
	})
	c := client(t, Config{URL: url + "/q?v=1", BearerTokenFile: token})
	a, err := c.Query(t.Context(), []string{"B1", "a\"\n<é"})
	if err != nil || len(a.Of) != 2 || a.Of["B1"].Presence != Present {
		t.Fatalf("got %+v, %v", a, err)
	}
	write(t, token, "s3cret-2")
	if _, err := c.Query(t.Context(), []string{"B1"}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`POST /q?v=1 {"bizIds":["B1","a\"\n<é"]} application/json application/json reconciler Bearer s3cret-1`,
		`POST /q?v=1 {"bizIds":["B1"]} application/json application/json reconciler Bearer s3cret-2`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestNobodyAskedIsNoRequest(t *testing.T) {
	t.Parallel()
	url := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("asked") })
	if a, err := client(t, Config{URL: url}).Query(t.Context(), nil); err != nil || len(a.Of) != 0 {
		t.Errorf("got %+v, %v", a, err)
	}
}

func TestAnIdThatJSONCannotCarryIsABadBatch(t *testing.T) {
	t.Parallel()
	url := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("asked") })
	a, err := client(t, Config{URL: url}).Query(t.Context(), []string{"B1", "B\xff"})
	refused(t, a, err, BadBatch, KindSetup)
}

func TestEachStatusHasItsOutcome(t *testing.T) {
	t.Parallel()
	const good = "GOOD" // stands for a well-formed answer, which no status but 200 makes count
	now := time.Date(2024, 5, 1, 10, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		status  int
		header  string // "Name: value"
		body    string
		outcome Outcome
		kind    Kind
		pause   time.Duration
		says    string
	}{
		"empty 200":                      {200, "", "", Unanswered, KindMalformed, 0, "200 with no Content-Type: answer at byte 0: empty body"},
		"HTML with 200":                  {200, "Content-Type: text/html", "<html>\n", Unanswered, KindMalformed, 0, "200 with text/html: answer at byte 0: invalid JSON"},
		"an error with 200":              {200, "", `{"error":"x"}`, Unanswered, KindMalformed, 0, "receipts is missing"},
		"201":                            {201, "", good, Unanswered, KindStatus, 0, "201 Created"},
		"204":                            {204, "", "", Unanswered, KindStatus, 0, "204 No Content"},
		"206":                            {206, "", good, Unanswered, KindStatus, 0, "206"},
		"301":                            {301, "Location: http://elsewhere.example/?secret=1", good, Misconfigured, KindStatus, 0, `redirects to "elsewhere.example"`},
		"302":                            {302, "Location: /login", good, Misconfigured, KindStatus, 0, "redirects to the same host"},
		"303 without a Location":         {303, "", good, Misconfigured, KindStatus, 0, "the same host"},
		"307":                            {307, "Location: //other", good, Misconfigured, KindStatus, 0, `"other"`},
		"308 with an unreadable address": {308, "Location: http://a b/%zz", good, Misconfigured, KindStatus, 0, "an unreadable Location"},
		"400":                            {400, "", "", BadBatch, KindStatus, 0, "400 Bad Request"},
		"401":                            {401, "", "", Misconfigured, KindStatus, 0, "401 Unauthorized, check the bearer token"},
		"403":                            {403, "", "", Misconfigured, KindStatus, 0, "403"},
		"404 is no NOT_FOUND":            {404, "", good, Misconfigured, KindStatus, 0, "404 Not Found, check the URL"},
		"409":                            {409, "", good, Unanswered, KindStatus, 0, "409"},
		"413":                            {413, "", "", BadBatch, KindTooLarge, 0, "413"},
		"422":                            {422, "", "", BadBatch, KindStatus, 0, "422"},
		"429 without Retry-After":        {429, "", "", Unanswered, KindStatus, 0, "429"},
		"429 for 7 seconds":              {429, "Retry-After: 7", "", Throttled, KindStatus, 7 * time.Second, "retry after 7s"},
		"429 for 0 seconds":              {429, "Retry-After: 0", "", Unanswered, KindStatus, 0, ""},
		"429 for -5 seconds":             {429, "Retry-After: -5", "", Unanswered, KindStatus, 0, ""},
		"429 for ten years":              {429, "Retry-After: 315360000", "", Throttled, KindStatus, MaxRetryAfter, ""},
		"429 for 10^30 seconds":          {429, "Retry-After: 1000000000000000000000000000000", "", Throttled, KindStatus, MaxRetryAfter, ""},
		"429 until a date":               {429, "Retry-After: Wed, 01 May 2024 10:01:00 GMT", "", Throttled, KindStatus, time.Minute, ""},
		"429 until a date of ten years":  {429, "Retry-After: Wed, 01 May 2034 10:01:00 GMT", "", Throttled, KindStatus, MaxRetryAfter, ""},
		"429 until a date in the past":   {429, "Retry-After: Wed, 01 May 2024 09:59:59 GMT", "", Unanswered, KindStatus, 0, ""},
		"429 until soon":                 {429, "Retry-After: soon", "", Unanswered, KindStatus, 0, ""},
		"500":                            {500, "Retry-After: 7", good, Unanswered, KindStatus, 0, "500 Internal Server Error"},
		"502":                            {502, "", "", Unanswered, KindStatus, 0, ""},
		"503":                            {503, "", "", Unanswered, KindStatus, 0, ""},
		"503 for 7 seconds":              {503, "Retry-After: 7", "", Throttled, KindStatus, 7 * time.Second, ""},
		"504":                            {504, "", "", Unanswered, KindStatus, 0, ""},
		"599":                            {599, "", "", Unanswered, KindStatus, 0, "599"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost || r.URL.Path != "/receipts" {
					t.Errorf("a second request: %s %s", r.Method, r.URL)
				}
				w.Header()["Content-Type"] = nil
				if k, v, ok := strings.Cut(c.header, ": "); ok {
					w.Header().Set(k, v)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, strings.Replace(c.body, good, answerOf(item()), 1))
			})
			cl := client(t, Config{URL: url + "/receipts"})
			cl.now = func() time.Time { return now }
			a, err := cl.Query(t.Context(), []string{"B1"})
			refused(t, a, err, c.outcome, c.kind)
			var e *Error
			if !errors.As(err, &e) || e.Status != c.status || e.RetryAfter != c.pause || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got status %d, pause %s, text %s", e.Status, e.RetryAfter, err)
			}
			if strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "POST "+url+"/receipts: ") {
				t.Errorf("text: %s", err)
			}
		})
	}
}

func TestContentEncodings(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, answerOf(item()))
	_ = z.Close()
	broken := bytes.Clone(zipped.Bytes())
	broken[len(broken)-5] ^= 1 // in the checksum

	for name, c := range map[string]struct {
		coding string
		body   string
		kind   Kind // "" when the answer counts
	}{
		"gzip":                {"gzip", zipped.String(), ""},
		"identity":            {"identity", answerOf(item()), ""},
		"plain called gzip":   {"gzip", answerOf(item()), KindMalformed},
		"gzip called plain":   {"", zipped.String(), KindMalformed},
		"gzip, but broken":    {"gzip", string(broken), KindMalformed},
		"gzip, but cut":       {"gzip", zipped.String()[:zipped.Len()-9], KindLost},
		"br, never asked for": {"br", answerOf(item()), KindMalformed},
		"gzip twice":          {"gzip, gzip", zipped.String(), KindMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				if c.coding != "" {
					w.Header().Set("Content-Encoding", c.coding)
				}
				_, _ = io.WriteString(w, c.body)
			})
			a, err := client(t, Config{URL: url}).Query(t.Context(), []string{"B1"})
			if c.kind != "" {
				refused(t, a, err, Unanswered, c.kind)
			} else if err != nil || a.Of["B1"].Presence != Present {
				t.Errorf("got %+v, %v", a, err)
			}
		})
	}
}

func TestACertificateOfAnUnknownAuthorityIsRefused(t *testing.T) {
	t.Parallel()
	s := tlsServer(t)
	a, err := client(t, Config{URL: s.URL}).Query(t.Context(), []string{"B1"})
	refused(t, a, err, Unanswered, KindTLS)
}

func TestPlainHTTPOnATLSPortIsATLSError(t *testing.T) {
	t.Parallel()
	url := serve(t, func(http.ResponseWriter, *http.Request) {})
	a, err := client(t, Config{URL: strings.Replace(url, "http:", "https:", 1)}).Query(t.Context(), []string{"B1"})
	refused(t, a, err, Unanswered, KindTLS)
}

func TestACertificateOfTheCAFileIsTrusted(t *testing.T) {
	t.Parallel()
	s := tlsServer(t)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	write(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	a, err := client(t, Config{URL: s.URL, CAFile: ca}).Query(t.Context(), []string{"B1"})
	if err != nil || a.Of["B1"].Presence != Present {
		t.Errorf("got %+v, %v", a, err)
	}
}

func tlsServer(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, answerOf(item()))
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func TestAUnusableTokenFileMisconfiguresTheToolAndNothingIsSent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"empty":         "",
		"only-newlines": "\r\n\n",
		"two-lines":     "s3cret\nInjected: header",
		"a-space":       "s3cret two",
		"control":       "s3cret\x07",
		"non-ascii":     "s3crét",
		"too-large":     strings.Repeat("s3cret", 20_000),
	} {
		write(t, filepath.Join(dir, name), content)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	url := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("sent") })
	for _, name := range []string{"empty", "only-newlines", "two-lines", "a-space", "control", "non-ascii", "too-large", "missing", ".", "pipe"} {
		t.Run(name, func(t *testing.T) {
			c := client(t, Config{URL: url, BearerTokenFile: filepath.Join(dir, name)})
			a, err := c.Query(t.Context(), []string{"B1"})
			refused(t, a, err, Misconfigured, KindSetup)
			if strings.Contains(err.Error(), "s3cr") || !strings.Contains(err.Error(), dir) {
				t.Errorf("text: %s", err)
			}
		})
	}
}

func TestAnErrorShowsNoSecretOfTheURL(t *testing.T) {
	t.Parallel()
	var auth string
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		auth = r.Header.Get("Authorization")
		w.WriteHeader(http.StatusInternalServerError)
	})
	c := client(t, Config{URL: strings.Replace(url, "http://", "http://me:s3cret@", 1) + "/q?key=s3cret"})
	a, err := c.Query(t.Context(), []string{"B1"})
	refused(t, a, err, Unanswered, KindStatus)
	if strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), url+"/q: 500") {
		t.Errorf("text: %s", err)
	}
	if auth != "Basic bWU6czNjcmV0" {
		t.Errorf("sent %q", auth)
	}
}

func TestNewClientSaysWhichValueIsWrong(t *testing.T) {
	t.Parallel()
	noCert := filepath.Join(t.TempDir(), "ca.pem")
	write(t, noCert, "nothing")
	for says, cfg := range map[string]Config{
		"URL: is missing":              {},
		"URL: is not a URL":            {URL: "http://me:s3cret@a b/"},
		`URL: has the scheme "ftp"`:    {URL: "ftp://a/"},
		"URL: names no host":           {URL: "http:///q"},
		"URL: has a fragment":          {URL: "http://a/#s3cret"},
		"URL and BearerTokenFile: ":    {URL: "http://me:s3cret@a/", BearerTokenFile: "/token"},
		"Timeout: 0s":                  {URL: "http://a/"},
		"MaxBytes: -1":                 {URL: "http://a/", Timeout: 1, MaxBytes: -1},
		"MaxBytes: 1073741825":         {URL: "http://a/", Timeout: 1, MaxBytes: 1<<30 + 1},
		"MaxItems: -1":                 {URL: "http://a/", Timeout: 1, MaxItems: -1},
		"Concurrency: -1":              {URL: "http://a/", Timeout: 1, Concurrency: -1},
		"CAFile: open /nowhere/ca.pem": {URL: "http://a/", Timeout: 1, CAFile: "/nowhere/ca.pem"},
		"holds no PEM certificate":     {URL: "http://a/", Timeout: 1, CAFile: noCert},
	} {
		_, err := NewClient(cfg)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("got %v, want %s", err, says)
		}
	}
}

func TestTheCallersCancelIsNotATimeout(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	a, err := client(t, Config{URL: url}).Query(ctx, []string{"B1"})
	refused(t, a, err, Unanswered, KindCanceled)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestTheCallersDeadlineIsNotTheDownstreamsTimeout(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), hasty)
	defer cancel()
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	a, err := client(t, Config{URL: url}).Query(ctx, []string{"B1"})
	refused(t, a, err, Unanswered, KindCanceled)
}

func TestOneConnectionServesManyQueriesWhateverTheyBring(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	n := 0
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		seen[r.RemoteAddr] = true
		if n++; n%2 == 0 {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
			return
		}
		_, _ = io.WriteString(w, answerOf(item()))
	})
	c := client(t, Config{URL: url})
	for range 6 {
		_, _ = c.Query(t.Context(), []string{"B1"})
	}
	if len(seen) != 1 || n != 6 {
		t.Errorf("%d connections for %d requests", len(seen), n)
	}
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
