/* Two fabrics in one process: messages both ways, one-sided access, batches, sleeping, and wrong use. Exits with 0 if all of it
 * was right. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "planespray.h"

#define CHECK(what)                                                                                      \
    do {                                                                                                 \
        if (!(what)) {                                                                                   \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #what, spray_last_error());       \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)
#define OK(call) CHECK((call) == SPRAY_OK)

enum { SIZE = 1 << 20, BATCH = 16 };

static spray_fabric *open_fabric(const char *planes, const uint8_t *key)
{
    spray_config config;
    spray_fabric *fabric = NULL;
    OK(spray_config_init(&config, sizeof config));
    config.planes = planes;
    config.key = key;
    OK(spray_fabric_open(&config, &fabric));
    return fabric;
}

static void misuse(spray_fabric *fabric)
{
    spray_config config;
    spray_fabric *none = NULL;
    spray_listener *listener = NULL;
    uint64_t len = 0;
    spray_request *request = NULL;
    CHECK(spray_config_init(NULL, sizeof config) == SPRAY_INVALID);
    CHECK(spray_config_init(&config, 3) == SPRAY_INVALID);
    CHECK(strstr(spray_last_error(), "size") != NULL);
    OK(spray_config_init(&config, sizeof config));
    config.planes = "127.0.0.1,not-an-address";
    CHECK(spray_fabric_open(&config, &none) == SPRAY_INVALID && none == NULL);
    CHECK(strstr(spray_last_error(), "not-an-address") != NULL);
    CHECK(spray_fabric_open(NULL, &none) == SPRAY_INVALID);
    CHECK(spray_listen(fabric, "nonsense", &listener) == SPRAY_INVALID && listener == NULL);
    CHECK(spray_listen(fabric, "127.0.0.1:0", NULL) == SPRAY_INVALID);
    CHECK(spray_test(&request, &len) == SPRAY_INVALID);
    CHECK(spray_test(NULL, &len) == SPRAY_INVALID);
    CHECK(spray_test_batch(NULL, 1, NULL, NULL) == SPRAY_INVALID);
    CHECK(spray_test_batch(NULL, 0, NULL, NULL) == 0);
    CHECK(strcmp(spray_status_text(SPRAY_AGAIN), "not now, try again") == 0);
    spray_fabric_close(NULL);
    spray_memory_release(NULL);
    spray_request_detach(NULL);
    OK(spray_close(NULL, 0, NULL));
}

int main(void)
{
    uint8_t key[32];
    char address[64];
    spray_listener *listener = NULL;
    spray_connecting *connecting = NULL;
    spray_connection *here = NULL, *there = NULL;
    spray_memory *from = NULL, *to = NULL;
    spray_request *send = NULL, *receive = NULL, *requests[2 * BATCH];
    uint8_t *out = malloc(SIZE), *in = malloc(SIZE), token[SPRAY_TOKEN_BYTES];
    int32_t status[2 * BATCH];
    uint64_t lens[2 * BATCH], len = 0, undelivered = 99;
    spray_window *window = NULL;
    time_t start = time(NULL);
    int i, over, fd = -1;

    CHECK(spray_abi_version() == SPRAY_ABI_VERSION);
    memset(key, 7, sizeof key);
    spray_fabric *a = open_fabric("127.2.0.1,127.2.0.2", key);
    spray_fabric *b = open_fabric("127.2.0.3,127.2.0.4", key);
    misuse(a);

    OK(spray_listen(b, "127.0.0.1:0", &listener));
    OK(spray_listener_address(listener, address, sizeof address));
    CHECK(spray_listener_address(listener, address, 3) == SPRAY_INVALID);
    CHECK(spray_accept(listener, 0, &there) == SPRAY_AGAIN);
    OK(spray_connect_begin(a, address, 20000, &connecting));
    while (here == NULL || there == NULL) {
        CHECK(time(NULL) - start < 30);
        if (here == NULL)
            CHECK((i = spray_connect_poll(connecting, &here)) == SPRAY_OK || i == SPRAY_AGAIN);
        if (there == NULL)
            CHECK((i = spray_accept(listener, 0, &there)) == SPRAY_OK || i == SPRAY_AGAIN);
    }
    spray_connecting_close(connecting);
    spray_listener_close(listener);

    for (i = 0; i < SIZE; i++)
        out[i] = (uint8_t)(i * 31 >> 3);
    OK(spray_memory_register(a, out, SIZE, &from));
    OK(spray_memory_register(b, in, SIZE, &to));
    CHECK(spray_memory_register(b, NULL, 1, &to) == SPRAY_INVALID);
    CHECK(spray_send(here, 0, 9, from, 0, 1, &send) == SPRAY_INVALID);
    CHECK(spray_send(here, 0, SPRAY_CLASS_BULK, from, 1, SIZE, &send) == SPRAY_INVALID && send == NULL);

    /* One message, whose receiver sleeps on the descriptor while the library's thread moves it. */
    OK(spray_event_fd(b, &fd));
    memset(in, 0, SIZE);
    OK(spray_receive(there, 1, to, 0, SIZE, &receive));
    OK(spray_send(here, 1, SPRAY_CLASS_BULK, from, 0, SIZE, &send));
    for (;;) {
        struct pollfd sleeper = {fd, POLLIN, 0};
        uint64_t count;
        int code = spray_test(&receive, &len);
        if (code == SPRAY_OK)
            break;
        CHECK(code == SPRAY_AGAIN && receive != NULL);
        CHECK(poll(&sleeper, 1, 20000) == 1);
        CHECK(read(fd, &count, sizeof count) == sizeof count);
    }
    CHECK(receive == NULL && len == SIZE && memcmp(in, out, SIZE) == 0);
    OK(spray_wait(&send, 20000, &len));
    CHECK(send == NULL && len == SIZE);

    /* A batch, tested at once. */
    memset(in, 0, SIZE);
    for (i = 0; i < BATCH; i++) {
        OK(spray_receive(there, 2, to, (uint64_t)i * 5000, 5000, &requests[i]));
        OK(spray_send(here, 2, SPRAY_CLASS_LATENCY, from, (uint64_t)i * 5000, 5000 - (uint64_t)i, &requests[BATCH + i]));
    }
    for (over = 0; over < 2 * BATCH;) {
        int n = spray_test_batch(requests, 2 * BATCH, status, lens);
        CHECK(n >= 0 && time(NULL) - start < 60);
        over += n;
    }
    for (i = 0; i < BATCH; i++) {
        CHECK(requests[i] == NULL && status[i] == SPRAY_OK && lens[i] == 5000 - (uint64_t)i);
        CHECK(memcmp(in + i * 5000, out + i * 5000, 5000 - (size_t)i) == 0);
    }

    /* Longer than its receive. */
    OK(spray_receive(there, 3, to, 0, 10000, &receive));
    OK(spray_send(here, 3, SPRAY_CLASS_STEADY, from, 0, 20000, &send));
    CHECK(spray_wait(&send, 20000, &len) == SPRAY_TOO_LONG && send == NULL);
    CHECK(strstr(spray_last_error(), "20000") != NULL);
    CHECK(spray_wait(&receive, 20000, NULL) == SPRAY_TOO_LONG && receive == NULL);
    OK(spray_receive(there, 4, to, 0, 1, &receive));
    CHECK(spray_wait(&receive, 10, NULL) == SPRAY_AGAIN && receive != NULL);
    spray_request_detach(receive);

    /* One-sided. */
    memset(in, 0, SIZE);
    CHECK(spray_expose(there, to, SIZE, 8, token, &window) == SPRAY_INVALID);
    OK(spray_expose(there, to, SIZE, SPRAY_ACCESS_WRITE | SPRAY_ACCESS_READ, token, &window));
    OK(spray_write(here, SPRAY_CLASS_BULK, from, 0, 300000, token, 700000, &send));
    OK(spray_wait(&send, 20000, &len));
    CHECK(len == 300000 && memcmp(in + 700000, out, 300000) == 0);
    OK(spray_read(here, SPRAY_CLASS_BULK, from, 0, 1000, token, 100, &send));
    OK(spray_wait(&send, 20000, &len));
    for (i = 0; i < 1000; i++)
        CHECK(out[i] == 0);
    spray_window_close(window);

    OK(spray_progress(a));
    OK(spray_close(here, 5000, &undelivered));
    CHECK(undelivered == 0);
    OK(spray_receive(there, 5, to, 0, 10, &receive));
    CHECK(spray_wait(&receive, 20000, NULL) == SPRAY_PEER_GONE);
    OK(spray_close(there, 5000, NULL));
    spray_memory_release(from);
    spray_memory_release(to);
    spray_fabric_close(a);
    spray_fabric_close(b);
    free(out);
    free(in);
    puts("all right");
    return 0;
}
