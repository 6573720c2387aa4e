package httplock_test

import (
	"testing"

	"github.com/perkey-go/perkey/internal/test/conformance"
)

func TestConformance(t *testing.T) { conformance.Run(t, conformance.NetHTTP()) }
