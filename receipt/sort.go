package receipt

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/go-json-experiment/json/jsontext"
)

// sorter puts the items of an answer to the ids that were asked about, all of them bizIds or all callIds.
type sorter struct {
	groups  map[string]*group
	unasked int
	repeats repeats
}

// group is what an answer says of one id.
type group struct {
	id       string
	receipts []Receipt
	absent   int // NOT_FOUND items that say it of just this id
}

func newSorter(asked []string) *sorter {
	groups, backing := make(map[string]*group, len(asked)), make([]group, len(asked))
	for i, id := range asked {
		backing[i].id = id
		groups[id] = &backing[i]
	}
	return &sorter{groups: groups, repeats: repeats{first: make(map[call]*sighting, len(asked))}}
}

// add takes one item of an answer about bizIds.
func (s *sorter) add(bizID []byte, r Receipt) {
	g := s.groups[string(bizID)]
	switch {
	case g == nil:
		s.unasked++
	case r.CallID == "":
		g.absent++
	default:
		r.BizID = g.id
		s.keep(g, r)
	}
}

// addCall takes one item of an answer about callIds.
func (s *sorter) addCall(bizID []byte, r Receipt) {
	g := s.groups[r.CallID]
	switch {
	case g == nil:
		s.unasked++
	case r.Status == StatusNotFound:
		g.absent++
	default:
		r.BizID, r.CallID = string(bizID), g.id
		s.keep(g, r)
	}
}

func (s *sorter) keep(g *group, r Receipt) {
	if !s.repeats.seen(r) {
		g.receipts = append(g.receipts, r)
	}
}

// answer sums up. A NOT_FOUND of the id itself yields to receipts of the same id: they are facts, it is the absence of one.
func (s *sorter) answer() Answer {
	a := Answer{Of: make(map[string]Evidence, len(s.groups)), Unasked: s.unasked, Duplicates: s.repeats.count}
	missing := &Error{Kind: KindMissing, Err: errors.New("the answer does not mention this id")}
	for id, g := range s.groups {
		switch {
		case len(g.receipts) > 0:
			a.Of[id] = Evidence{Presence: Present, Receipts: g.receipts}
		case g.absent > 0:
			a.Of[id] = Evidence{Presence: Absent}
		default:
			a.Of[id] = Evidence{Presence: Unknown, Err: missing}
		}
		a.Duplicates += max(0, g.absent-1)
	}
	return a
}

// repeats finds items that are equal as JSON values, whatever their white space, escapes and order of members.
// Numbers are compared as they are written, so that none is rounded. Only items of the same call are compared,
// and each is brought into its canonical form at most once.
type repeats struct {
	count int
	first map[call]*sighting
	forms map[string]struct{} // canonical forms of the calls listed more than once
}

type call struct{ bizID, callID string }

// sighting is the first item of a call.
type sighting struct {
	raw    json.RawMessage
	formed bool // its canonical form is in forms
}

func (p *repeats) seen(r Receipt) bool {
	id := call{r.BizID, r.CallID}
	first, again := p.first[id]
	if !again {
		p.first[id] = &sighting{raw: r.Raw}
		return false
	}
	if !bytes.Equal(first.raw, r.Raw) {
		if !first.formed {
			first.formed = true
			p.enter(first.raw)
		}
		if p.enter(r.Raw) {
			return false
		}
	}
	p.count++
	return true
}

// enter records a canonical form and reports whether it is new.
func (p *repeats) enter(raw json.RawMessage) bool {
	form, _ := jsontext.AppendFormat(nil, raw, jsontext.ReorderRawObjects(true)) // cannot fail on what was parsed
	if p.forms == nil {
		p.forms = make(map[string]struct{})
	}
	if _, old := p.forms[string(form)]; old {
		return false
	}
	p.forms[string(form)] = struct{}{}
	return true
}
