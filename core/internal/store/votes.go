package store

// votes counts what the nodes answer to one question.
type votes struct{ nodes, majority, yes, no, failed int }

type answer int

const (
	answerYes answer = iota
	answerNo
	answerFailed
)

func (v *votes) add(a answer) {
	switch a {
	case answerYes:
		v.yes++
	case answerNo:
		v.no++
	default:
		v.failed++
	}
}

func (v *votes) pending() int { return v.nodes - v.yes - v.no - v.failed }

// expire counts those that have not answered as failed.
func (v *votes) expire() { v.failed += v.pending() }

func (v *votes) accepted() bool { return v.yes >= v.majority }

// denied: whoever asks for a majority now meets a node that said no.
func (v *votes) denied() bool { return v.no > v.nodes-v.majority }

// unknown: too few nodes answer.
func (v *votes) unknown() bool { return v.failed > v.nodes-v.majority }

func (v *votes) settled() bool {
	return v.accepted() || v.denied() || v.unknown() || v.pending() == 0
}
