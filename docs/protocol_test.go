package docs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/receipt"
	"github.com/callreceipt/reconciler/reconcile"
)

const protocol = "protocol.md"

// blocks are all fenced blocks of a language.
func blocks(t *testing.T, file, language string) (found []string) {
	t.Helper()
	for _, b := range fence.FindAllStringSubmatch(text(t, file), -1) {
		if b[1] == language {
			found = append(found, b[2])
		}
	}
	return found
}

// strict decodes one JSON document that has no members but those of v.
func strict(t *testing.T, document string, v any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(document))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		t.Errorf("%v in %s", err, document)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		t.Errorf("more than one document: %s", document)
	}
}

// wellFormed holds an answer to what the reconciler takes for one, and to the bizIds it is about.
func wellFormed(t *testing.T, answer string, bizIDs ...string) {
	t.Helper()
	got, err := receipt.Decode([]byte(answer), bizIDs, receipt.Limits{})
	if err != nil {
		t.Errorf("%v in %s", err, answer)
		return
	}
	if got.Unasked > 0 || got.Duplicates > 0 {
		t.Errorf("%d receipts that were not asked for and %d twice in %s", got.Unasked, got.Duplicates, answer)
	}
	for id, ev := range got.Of {
		if ev.Presence == receipt.Unknown {
			t.Errorf("%s is not answered in %s", id, answer)
		}
	}
}

func TestEveryJSONExampleIsWhatGoesOverTheWire(t *testing.T) {
	t.Parallel()
	asked := []string{"ORD-8", "ORD-9"}
	kinds, callQuestion := map[string]int{}, ""
	for _, example := range append(blocks(t, protocol, "json"), block(t, readme, "json", `"receipts"`)) {
		var members map[string]json.RawMessage
		if err := json.Unmarshal([]byte(example), &members); err != nil {
			t.Errorf("%v in %s", err, example)
			continue
		}
		switch {
		case members["bizIds"] != nil:
			kinds["question"]++
			var question struct {
				BizIDs []string `json:"bizIds"`
			}
			strict(t, example, &question)
			if !slices.Equal(question.BizIDs, asked) {
				t.Errorf("asks about %v", question.BizIDs)
			}
		case members["callIds"] != nil:
			kinds["question about calls"]++
			callQuestion = example
		case members["receipts"] != nil && strings.Contains(example, `{"callId":"ORD-9-0001","status":"NOT_FOUND"}`):
			kinds["answer about calls"]++
			askedByCall(t, callQuestion, example)
		case members["receipts"] != nil && strings.Contains(example, "ORD-8"):
			kinds["answer"]++
			wellFormed(t, example, asked...)
		case members["receipts"] != nil:
			kinds["answer"]++
			wellFormed(t, example, "ORD-1", "ORD-2")
		case members["data"] != nil:
			kinds["webhook"]++
			var m reconcile.Message
			strict(t, example, &m)
			wellFormed(t, `{"receipts":[`+string(m.Data.Receipt)+`]}`, m.Data.BizID)
		case members["status"] != nil:
			kinds["answer to a send"]++
			wellFormed(t, `{"receipts":[`+example+`]}`, "ORD-9")
		default:
			kinds["send"]++
			for _, name := range []string{"callId", "bizId", "operation", "idempotencyKey", "attempt", "timestamp"} {
				if members[name] == nil {
					t.Errorf("%s lacks %s", example, name)
				}
			}
		}
	}
	for _, kind := range []string{"question", "question about calls", "answer", "answer about calls", "send", "answer to a send", "webhook"} {
		if kinds[kind] == 0 {
			t.Errorf("there is no example of a %s", kind)
		}
	}
}

// askedByCall has the client of callers ask, and compares its question with the example and what it reads with the answer.
func askedByCall(t *testing.T, question, answer string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); string(body) != strings.TrimSpace(question) {
			t.Errorf("a caller asks %s, and the example is %s", body, question)
		}
		io.WriteString(w, answer)
	}))
	defer server.Close()
	client, err := receipt.NewClient(receipt.Config{URL: server.URL, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	got, err := client.QueryCalls(t.Context(), []string{"ORD-8-0001", "ORD-9-0001"})
	if err != nil || got.Of["ORD-8-0001"].Presence != receipt.Present || got.Of["ORD-9-0001"].Presence != receipt.Absent || got.Unasked != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestThePromisedNumbersOfTheWebhookAreThoseOfTheCode(t *testing.T) {
	t.Parallel()
	if promise := fmt.Sprintf("After %d attempts", reconcile.NotifyAttempts); !strings.Contains(strings.Join(strings.Fields(text(t, protocol)), " "), promise) {
		t.Errorf("%s does not say %q", protocol, promise)
	}
	if id := reconcile.WebhookID("ORD-9-0001", 4); !strings.Contains(text(t, protocol), "Webhook-Id: "+id+"\n") {
		t.Errorf("the example does not have the webhook-id %s", id)
	}
}

func TestEveryGoProgramCompiles(t *testing.T) {
	t.Parallel()
	programs := 0
	for _, file := range []string{protocol, decisionTable} {
		for _, program := range blocks(t, file, "go") {
			if !strings.HasPrefix(program, "package main\n") {
				continue
			}
			programs++
			source := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.CommandContext(t.Context(), "go", "vet", source).CombinedOutput(); err != nil {
				t.Errorf("a program of %s: %v\n%s", file, err, out)
			}
		}
	}
	if programs < 2 {
		t.Errorf("only %d programs were found", programs)
	}
}

var indent = regexp.MustCompile(`(?m)^\t+`)

func TestTheExcerptsInGoAreThoseThatAreCompiled(t *testing.T) {
	t.Parallel()
	flat := func(source string) string { return indent.ReplaceAllString(source, "") }
	compiled := flat(text(t, "../pending/example_test.go"))
	excerpts := 0
	for _, excerpt := range blocks(t, protocol, "go") {
		if strings.HasPrefix(excerpt, "package main\n") {
			continue
		}
		excerpts++
		if !strings.Contains(compiled, flat(excerpt)) {
			t.Errorf("this is not in pending/example_test.go:\n%s", excerpt)
		}
	}
	if excerpts != 3 {
		t.Errorf("%d excerpts, want one for each of Suspend, TakeRetries and Await", excerpts)
	}
}
