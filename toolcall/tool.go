package toolcall

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/receipt"
)

// Tool is one operation of a downstream and what may be done with its calls.
type Tool struct {
	Name      string // 1 to 200 bytes, the name that the reconciler's configuration has for it
	Operation string // of calls that name none; at most 200 bytes
	// Retryable: the business allows that a call is sent again. Idempotent: the downstream executes one key once. A call is sent
	// a second time, once a connection was had, only with both.
	Retryable, Idempotent bool
	// NeedsReceipt: only a receipt tells whether a call was executed. False is for a pure query, which changes nothing and is
	// repeated without a look.
	NeedsReceipt bool
	Endpoint     receipt.Config // where calls are sent; its Timeout is that of one send
	Receipts     receipt.Config // where receipts are asked for; required with NeedsReceipt, not looked at without
	MaxSends     int            // 1 to 3, those without a connection included; 0 means 3
	Concurrency  int            // sends under way at once, more wait; 0 means 64
}

const defaultConcurrency = 64

// tool is a Tool that was found right, with what it takes to call it.
type tool struct {
	name, operation string
	tags            tags
	endpoint        *receipt.Client
	receipts        *receipt.Client // nil without NeedsReceipt
	slots           chan struct{}   // one for each send under way
}

// register makes the registry. It stops at the first thing that is wrong.
func register(tools []Tool) (map[string]*tool, error) {
	if len(tools) == 0 {
		return nil, errors.New("Config.Tools is empty: every call would be one of an unknown tool")
	}
	registry := make(map[string]*tool, len(tools))
	for i, t := range tools {
		if err := checkText(t.Name, mostName); err != nil {
			return nil, fmt.Errorf("Config.Tools[%d].Name %w", i, err)
		}
		if registry[t.Name] != nil {
			return nil, fmt.Errorf("Config.Tools[%d]: %s is registered twice", i, printable.ID(t.Name))
		}
		made, err := newTool(t)
		if err != nil {
			return nil, fmt.Errorf("tool %s: %w", printable.ID(t.Name), err)
		}
		registry[t.Name] = made
	}
	return registry, nil
}

func newTool(t Tool) (*tool, error) {
	switch {
	case t.Operation != "" && checkText(t.Operation, receipt.MaxOperation) != nil:
		return nil, fmt.Errorf("Tool.Operation %w", checkText(t.Operation, receipt.MaxOperation))
	case t.NeedsReceipt && t.Receipts.URL == "":
		return nil, errors.New("Tool.NeedsReceipt is true, but Tool.Receipts.URL is empty: nobody could be asked for the receipt of a call whose answer is lost")
	case t.MaxSends < 0 || t.MaxSends > mostSends:
		return nil, fmt.Errorf("Tool.MaxSends is %d, must be from 1 to %d, or 0 for %d: more is the reconciler's to send", t.MaxSends, mostSends, mostSends)
	case t.Concurrency < 0:
		return nil, fmt.Errorf("Tool.Concurrency is %d, must not be negative", t.Concurrency)
	}
	if t.MaxSends == 0 {
		t.MaxSends = mostSends
	}
	if t.Concurrency == 0 {
		t.Concurrency = defaultConcurrency
	}
	made := &tool{
		name: t.Name, operation: t.Operation, slots: make(chan struct{}, t.Concurrency),
		tags: tags{retryable: t.Retryable, idempotent: t.Idempotent, needsReceipt: t.NeedsReceipt, maxSends: t.MaxSends},
	}
	var err error
	if made.endpoint, err = connect(t.Endpoint, t.Concurrency); err != nil {
		return nil, fmt.Errorf("Tool.Endpoint: %w", err)
	}
	if !t.NeedsReceipt {
		return made, nil
	}
	if made.receipts, err = connect(t.Receipts, t.Concurrency); err != nil {
		return nil, fmt.Errorf("Tool.Receipts: %w", err)
	}
	return made, nil
}

// connect keeps a connection for each of the calls that may be under way, unless cfg says otherwise.
func connect(cfg receipt.Config, concurrency int) (*receipt.Client, error) {
	if cfg.Concurrency == 0 {
		cfg.Concurrency = concurrency
	}
	return receipt.NewClient(cfg)
}

func (t *tool) close() {
	t.endpoint.Close()
	if t.receipts != nil {
		t.receipts.Close()
	}
}

// unknownTool names what was asked for and what there is.
func unknownTool(name string, registry map[string]*tool) error {
	known := slices.Sorted(maps.Keys(registry))
	for i, k := range known {
		known[i] = printable.ID(k)
	}
	return fmt.Errorf("%w %s, registered: %s", ErrUnknownTool, shown(name), strings.Join(known, ", "))
}
