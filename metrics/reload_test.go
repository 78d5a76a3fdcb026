package metrics

import (
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWhoMayReload(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const here, here6, far, none = "127.0.0.1:4711", "[::1]:4711", "192.0.2.7:4711", ""
	for _, c := range []struct {
		what, remote string
		file         string
		headers      []string
		status       int
		text         string
	}{
		{"this machine", here, none, nil, 200, "reloaded\n"},
		{"this machine by IPv6", here6, none, nil, 200, "reloaded\n"},
		{"this machine, IPv4 in IPv6", "[::ffff:127.0.0.1]:4711", none, nil, 200, "reloaded\n"},
		{"another machine", far, none, nil, 403, errRemote.Error()},
		{"another machine, where there is a token", far, token, nil, 403, errRemote.Error()},
		{"the token", far, token, []string{"Authorization", "Bearer s3cret"}, 200, "reloaded\n"},
		{"the token in another case of the scheme", far, token, []string{"Authorization", "bearer s3cret"}, 200, "reloaded\n"},
		{"a wrong token", far, token, []string{"Authorization", "Bearer s3cre"}, 403, errToken.Error()},
		{"an empty token", far, token, []string{"Authorization", "Bearer "}, 403, errToken.Error()},
		{"a wrong token from this machine", here, token, []string{"Authorization", "Bearer x"}, 403, errToken.Error()},
		{"the token as a password", far, token, []string{"Authorization", "Basic s3cret"}, 403, errRemote.Error()},
		{"a token where there is none", far, none, []string{"Authorization", "Bearer "}, 403, errRemote.Error()},
		{"a token file that is gone", far, token + ".gone", []string{"Authorization", "Bearer s3cret"}, 403, errToken.Error()},
		{"a token file that is a directory", far, filepath.Dir(token), []string{"Authorization", "Bearer s3cret"}, 403, errToken.Error()},
		{"a page of another origin", here, none, []string{"Origin", "https://evil.example"}, 403, errBrowser.Error()},
		{"a page without an origin", here, none, []string{"Origin", "null"}, 403, errBrowser.Error()},
		{"a page whose name was rebound", here, none, []string{"Origin", "http://evil.example:9464", "Sec-Fetch-Site", "same-origin"}, 403, errBrowser.Error()},
		{"a page on another port", here, none, []string{"Sec-Fetch-Site", "same-site"}, 403, errBrowser.Error()},
		{"a page that knows the token", far, token, []string{"Authorization", "Bearer s3cret", "Sec-Fetch-Site", "cross-site"}, 403, errBrowser.Error()},
		{"somebody behind a proxy on this machine", here, none, []string{"X-Forwarded-For", "192.0.2.7"}, 403, errRemote.Error()},
		{"an address that is none", "@", none, nil, 403, errRemote.Error()},
	} {
		reloads := 0
		r := httptest.NewRequest("POST", "/-/reload", nil)
		r.RemoteAddr = c.remote
		for i := 0; i < len(c.headers); i += 2 {
			r.Header.Set(c.headers[i], c.headers[i+1])
		}
		w := httptest.NewRecorder()
		Handler(HandlerConfig{Log: quiet, ReloadTokenFile: c.file, Reload: func() error { reloads++; return nil }}).ServeHTTP(w, r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.text) || (reloads == 1) != (c.status == 200) {
			t.Errorf("%s: %d %q, %d reloads", c.what, w.Code, w.Body, reloads)
		}
	}
}

func TestATokenThatWasReplacedCountsAtOnce(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	url := serve(t, HandlerConfig{ReloadTokenFile: token, Reload: func() error { return nil }})
	for _, content := range []string{"one\r\n", "two"} {
		if err := os.WriteFile(token, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, given := range []string{"one", "two"} {
			want := 403
			if strings.TrimSpace(content) == given {
				want = 200
			}
			if got := ask(t, "POST", url+"/-/reload", "Authorization", "Bearer "+given); got.status != want {
				t.Errorf("%q with %q in the file: %d", given, content, got.status)
			}
		}
	}
}

func TestAReloadThatFailsSaysWhyLineByLine(t *testing.T) {
	t.Parallel()
	url := serve(t, HandlerConfig{Reload: func() error { return errors.New("3:5 unknown key\n7:1 \x1b[31mbad") }})
	got := ask(t, "POST", url+"/-/reload")
	if got.status != 500 || got.body != "not reloaded, what was in force stays in force:\n3:5 unknown key\n7:1 \\x1b[31mbad\n" {
		t.Errorf("%d %q", got.status, got.body)
	}
}
