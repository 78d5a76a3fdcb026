package demo

// Summary is what `reconciler demo -o json` prints; its field names are a contract. Success, Failed, Manual and Open
// are of the suspended calls and add up to them; the others were settled by their callers.
type Summary struct {
	Calls            int     `json:"calls"`
	TimedOut         int     `json:"timed_out"` // calls whose first send brought no answer
	Suspended        int     `json:"suspended"` // calls in the pending table
	Success          int     `json:"success"`
	Failed           int     `json:"failed"`
	Manual           int     `json:"manual"`
	Open             int     `json:"open"`              // neither final nor with a person
	Retried          int     `json:"retried"`           // sends beyond the first by anybody, all with the original callId
	Effects          int     `json:"effects"`           // what the downstream executed
	DuplicateEffects int     `json:"duplicate_effects"` // intents that it executed more than once
	WrongVerdicts    int     `json:"wrong_verdicts"`    // outcomes that its books, the rules, the sends or the webhook contradict
	Lost             int     `json:"lost"`              // calls whose caller does not know the outcome, and that are not parked
	DurationSeconds  float64 `json:"duration_seconds"`
}

// Good reports that nothing happened that may never happen.
func (s Summary) Good() bool {
	return s.Open == 0 && s.DuplicateEffects == 0 && s.WrongVerdicts == 0 && s.Lost == 0
}

// Result is the summary and what a person likes to see of it.
type Result struct {
	Summary
	AtOnce     int // calls that their callers settled themselves
	Dispatched int // of Retried, the sends that the reconciler made
	HandedOff  int // and those that the orchestrator made of what was handed off to it; the others are the callers' own
	Deliveries Deliveries
	Awaited    int      // verdicts that the orchestrator also waited for on the spot
	Rows       []Row    // one for each way that a call went, in the order of the ways
	Problems   []string // the first faults in words
	Example    *Example // nil when no call was parked
}

// Row is what became of the calls that went one way. The verdicts are those on the parked ones.
type Row struct {
	Way                                                                      Way
	Calls, AtOnce, Parked, Success, Failed, Manual, Open, SentAgain, Effects int
}
