package lockotel_test

import (
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable() // some tests have a Redis that is not there
	redistest.Main(m)
}
