package idempotency

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// posted is a body that a handler takes by POST, and the words in which one is refused.
type posted struct {
	what   string // what is posted
	body   string // what its body is called
	most   int    // bytes in it
	advice string // follows what is said of a body that is larger
}

var (
	aCall     = posted{what: "a call", body: "the body", most: maxBody}
	aQuestion = posted{what: "the receipt query", body: "the question", most: mostQuestion, advice: ", ask for fewer ids at once"}
)

// read returns the whole body. If there is none that may be looked at, the request is answered and ok is false.
func (p posted) read(w http.ResponseWriter, req *http.Request) (body []byte, ok bool) {
	if req.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		deny(w, http.StatusMethodNotAllowed, p.what+" is a POST")
		return nil, false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, int64(p.most)))
	if err == nil {
		return body, true
	}
	if _, larger := errors.AsType[*http.MaxBytesError](err); larger {
		deny(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("%s is larger than %d bytes%s", p.body, p.most, p.advice))
	} else {
		deny(w, http.StatusBadRequest, p.body+" did not arrive as a whole")
	}
	return nil, false
}

// deny says what is wrong.
func deny(w http.ResponseWriter, status int, what string) {
	body, _ := jsontext.AppendQuote([]byte(`{"error":`), what) // invalid UTF-8 is replaced
	respond(w, status, append(body, '}', '\n'))
}

func respond(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // whoever asked may be gone
}
