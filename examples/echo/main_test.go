package main

import (
	"testing"

	"github.com/perkey-go/perkey/examples/internal/show/showtest"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestOrderService(t *testing.T) { showtest.Orders(t, run) }
