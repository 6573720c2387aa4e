package delayqueue_test

const workerVar = "PERKEY_DELAYQUEUE_WORKER"

func workerProcess(string) {}
