package asynqlock

import (
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/require"
)

// Callers choose the types of their tasks: what is remembered of them is bounded.
func TestTypically_ManyTypes(t *testing.T) {
	m := &middleware{}
	process := func(kind string) *processing { return &processing{middleware: m, task: asynq.NewTask(kind, nil)} }
	for i := range 3 * maxTypes {
		process(fmt.Sprint("mail:", i)).typically(time.Now())
	}
	known := 0
	m.typical.Range(func(any, any) bool { known++; return true })
	require.Equal(t, maxTypes, known)
	require.True(t, process("mail:0").isShort())
	require.False(t, process(fmt.Sprint("mail:", 2*maxTypes)).isShort(), "it is not known")
}
