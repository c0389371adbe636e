/* planespray: messages over many RoCEv2 paths. See docs/c-abi.md for the rules on threads and ownership.
 *
 * Made by cbindgen; do not edit. */

#ifndef PLANESPRAY_H
#define PLANESPRAY_H

#include <stddef.h>
#include <stdint.h>

/*
 Bytes of a window's token.
 */
#define SPRAY_TOKEN_BYTES 48

/*
 The peer may write to the window.
 */
#define SPRAY_ACCESS_WRITE 1

/*
 The peer may read from the window.
 */
#define SPRAY_ACCESS_READ 2

/*
 Small messages whose delay is felt.
 */
#define SPRAY_CLASS_LATENCY 0

/*
 Regular traffic with a rate to keep.
 */
#define SPRAY_CLASS_STEADY 1

/*
 As much as fits.
 */
#define SPRAY_CLASS_BULK 2

/*
 It worked.
 */
#define SPRAY_OK 0

/*
 Not now: nothing is there yet, or too much is outstanding. Try again later; no error text is left.
 */
#define SPRAY_AGAIN -1

/*
 An argument is null, out of range, or contradicts another.
 */
#define SPRAY_INVALID -2

/*
 The operating system refused something, or there is no memory.
 */
#define SPRAY_SYSTEM -3

/*
 The two ends could not agree: another key, another version, no common plane, or it took too long.
 */
#define SPRAY_HANDSHAKE -4

/*
 The peer is gone, or closed the connection.
 */
#define SPRAY_PEER_GONE -5

/*
 The operation failed at one of the ends or on the way.
 */
#define SPRAY_FAILED -6

/*
 A message is longer than the receive that it met.
 */
#define SPRAY_TOO_LONG -7

/*
 The connection was closed at this end.
 */
#define SPRAY_CLOSED -8

/*
 A fault of planespray; please report it.
 */
#define SPRAY_BUG -9

/*
 The error was not about the arrival of something sent.
 */
#define SPRAY_FATE_NONE 0

/*
 All of it had arrived, as success would have meant.
 */
#define SPRAY_FATE_DELIVERED 1

/*
 It has not arrived, and will not.
 */
#define SPRAY_FATE_NOT_DELIVERED 2

/*
 Part of it was under way, and nobody is left who could tell.
 */
#define SPRAY_FATE_UNKNOWN 3

/*
 The version that this header describes.
 */
#define SPRAY_ABI_VERSION 1

/*
 A connection on the way up.
 */
typedef struct spray_connecting spray_connecting;

/*
 Messages and one-sided operations with one peer.
 */
typedef struct spray_connection spray_connection;

/*
 A process's ports on all planes.
 */
typedef struct spray_fabric spray_fabric;

/*
 Waits for peers.
 */
typedef struct spray_listener spray_listener;

/*
 Registered memory.
 */
typedef struct spray_memory spray_memory;

/*
 An operation under way.
 */
typedef struct spray_request spray_request;

/*
 Memory that one peer may reach by itself.
 */
typedef struct spray_window spray_window;

/*
 How a fabric is opened. Set it up by `spray_config_init`, which makes later versions of it compatible.
 */
typedef struct spray_config {
  /*
   Size of this struct, set by `spray_config_init`.
   */
  uint64_t size;
  /*
   Local addresses separated by commas, one per plane, 1 to 8 of them: the embedded engine runs over these. NULL:
   127.0.0.1.
   */
  const char *planes;
  /*
   The job's key, 32 bytes, the same at both ends. NULL: the environment's (`PLANESPRAY_JOB_KEY`).
   */
  const uint8_t *key;
  /*
   Not 0: go on without a key and without authentication.
   */
  uint32_t insecure;
  /*
   Data lanes per plane and class, 1 to 64; 0: the default.
   */
  uint32_t lanes_per_plane;
  /*
   RoCE MTU: 256, 512, 1024, 2048 or 4096; 0: the default.
   */
  uint32_t mtu;
  /*
   DSCP of each class, 0 to 63: latency, steady, bulk.
   */
  uint8_t dscp[3];
  /*
   Zero.
   */
  uint8_t reserved;
  /*
   Milliseconds for which a peer may be silent; 0: the default.
   */
  uint64_t peer_timeout_ms;
} spray_config;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Waits for peers at a TCP address, such as `192.0.2.1:18515`; port 0 lets the system choose.

 # Safety
 All pointers are NULL or valid.
 */
int32_t spray_listen(const struct spray_fabric *fabric, const char *addr, struct spray_listener **listener);

/*
 Writes where it listens to `text`, of `room` bytes (64 are enough), with a zero byte at the end.

 # Safety
 All pointers are NULL or valid.
 */
int32_t spray_listener_address(const struct spray_listener *listener, char *text, uint64_t room);

/*
 The next peer that completes its handshake, after at most `timeout_ms`; `SPRAY_AGAIN` if there was none. With 0 it only
 looks: handshakes go on only while somebody calls this.

 # Safety
 All pointers are NULL or valid.
 */
int32_t spray_accept(const struct spray_listener *listener,
                     uint64_t timeout_ms,
                     struct spray_connection **connection);

/*
 Closes a listener; its connections stay. NULL is allowed.

 # Safety
 `listener` came from `spray_listen` and is not used again.
 */
void spray_listener_close(struct spray_listener *listener);

/*
 Connects to a peer that listens at `addr`; waits for at most `timeout_ms`.

 # Safety
 All pointers are NULL or valid.
 */
int32_t spray_connect(const struct spray_fabric *fabric,
                      const char *addr,
                      uint64_t timeout_ms,
                      struct spray_connection **connection);

/*
 Begins to connect, without waiting; `spray_connect_poll` goes on. It has `timeout_ms` to succeed.

 # Safety
 All pointers are NULL or valid.
 */
int32_t spray_connect_begin(const struct spray_fabric *fabric,
                            const char *addr,
                            uint64_t timeout_ms,
                            struct spray_connecting **connecting);

/*
 Goes on without waiting: `SPRAY_AGAIN` until it is up. Close `connecting` afterwards, whatever came of it.

 # Safety
 All pointers are NULL or valid.
 */
int32_t spray_connect_poll(const struct spray_connecting *connecting, struct spray_connection **connection);

/*
 Gives up what is not connected yet, and frees it. NULL is allowed.

 # Safety
 `connecting` came from `spray_connect_begin` and is not used again.
 */
void spray_connecting_close(struct spray_connecting *connecting);

/*
 Sends what is under way, says goodbye, and closes the connection after at most `timeout_ms`. `undelivered` (NULL is allowed)
 gets the number of sends and one-sided operations that were not over. Requests of the connection stay the caller's.

 # Safety
 `connection` came from this library and is not used again; `undelivered` is NULL or valid.
 */
int32_t spray_close(struct spray_connection *connection,
                    uint64_t timeout_ms,
                    uint64_t *undelivered);

/*
 Fills in the defaults. `size` is `sizeof(spray_config)` as the caller's header has it.

 # Safety
 `config` is NULL or has `size` bytes.
 */
int32_t spray_config_init(struct spray_config *config, uint64_t size);

/*
 Opens the ports. `*fabric` is closed by `spray_fabric_close`.

 # Safety
 `config` was initialized and its pointers are NULL or valid; `fabric` is valid.
 */
int32_t spray_fabric_open(const struct spray_config *config, struct spray_fabric **fabric);

/*
 Closes the fabric's handle; the ports go with the last listener, connection and memory. NULL is allowed.

 # Safety
 `fabric` came from `spray_fabric_open` and is not used again.
 */
void spray_fabric_close(struct spray_fabric *fabric);

/*
 Does what is due, without waiting. Any call on an operation does so too.

 # Safety
 `fabric` is NULL or open.
 */
int32_t spray_progress(const struct spray_fabric *fabric);

/*
 A descriptor for `poll` or `epoll`: readable when operations have ended since its 8 bytes were last read. It belongs to the
 fabric; do not close it. Operations go on while the caller sleeps on it.

 # Safety
 `fabric` is NULL or open, `fd` NULL or valid.
 */
int32_t spray_event_fd(const struct spray_fabric *fabric,
                       int *fd);

/*
 Registers `len` bytes at `start`, which stay the caller's: they must stay valid until `spray_memory_release` returns, and must
 not be touched while an operation uses them, except to read what is being sent.

 # Safety
 As said; `fabric` is NULL or open, `memory` NULL or valid.
 */
int32_t spray_memory_register(const struct spray_fabric *fabric,
                              void *start,
                              uint64_t len,
                              struct spray_memory **memory);

/*
 Gives the memory back to the caller: from here on nothing reads or writes it. Operations that still use it end, or go on
 without it. NULL is allowed.

 # Safety
 `memory` came from `spray_memory_register` and is not used again.
 */
void spray_memory_release(struct spray_memory *memory);

/*
 Lets the peer of `connection` at the first `len` bytes of `memory`, and writes the window's token, which the peer needs, to
 `token` (48 bytes). Whoever has the token can use the window, so it travels only between the two.

 # Safety
 All pointers are NULL or valid; `memory` outlives the window.
 */
int32_t spray_expose(const struct spray_connection *connection,
                     const struct spray_memory *memory,
                     uint64_t len,
                     uint32_t access,
                     uint8_t *token,
                     struct spray_window **window);

/*
 Closes a window. What the peer still sends to it is refused and costs one of its lanes, so the peer should be known to be
 done. NULL is allowed.

 # Safety
 `window` came from `spray_expose` and is not used again.
 */
void spray_window_close(struct spray_window *window);

/*
 Sends `len` bytes at `offset` of `memory` as one message. The nth send on a channel meets the nth receive on it.
 `SPRAY_AGAIN`: too much is outstanding.

 # Safety
 All pointers are NULL or valid.
 */
int32_t spray_send(const struct spray_connection *connection,
                   uint32_t channel,
                   uint32_t class_number,
                   const struct spray_memory *memory,
                   uint64_t offset,
                   uint64_t len,
                   struct spray_request **request);

/*
 Receives the next message of a channel into at most `len` bytes at `offset` of `memory`.

 # Safety
 All pointers are NULL or valid.
 */
int32_t spray_receive(const struct spray_connection *connection,
                      uint32_t channel,
                      const struct spray_memory *memory,
                      uint64_t offset,
                      uint64_t len,
                      struct spray_request **request);

/*
 Writes `len` bytes at `offset` of `memory` to `remote_offset` of the peer's window that `token` (48 bytes) names. Done means:
 they are there. The peer's program is not told.

 # Safety
 All pointers are NULL or valid.
 */
int32_t spray_write(const struct spray_connection *connection,
                    uint32_t class_number,
                    const struct spray_memory *memory,
                    uint64_t offset,
                    uint64_t len,
                    const uint8_t *token,
                    uint64_t remote_offset,
                    struct spray_request **request);

/*
 Reads `len` bytes at `remote_offset` of the peer's window into `offset` of `memory`.

 # Safety
 All pointers are NULL or valid.
 */
int32_t spray_read(const struct spray_connection *connection,
                   uint32_t class_number,
                   const struct spray_memory *memory,
                   uint64_t offset,
                   uint64_t len,
                   const uint8_t *token,
                   uint64_t remote_offset,
                   struct spray_request **request);

/*
 Looks whether `*request` is over: `SPRAY_AGAIN` if not. Otherwise it is freed and `*request` set to NULL, and the status
 and `*len` (NULL is allowed) say how it ended and how many bytes it moved.

 # Safety
 All pointers are NULL or valid; one thread at a time per request.
 */
int32_t spray_test(struct spray_request **request,
                   uint64_t *len);

/*
 As `spray_test`, but waits for at most `timeout_ms`; sleeps while nothing arrives.

 # Safety
 As `spray_test`.
 */
int32_t spray_wait(struct spray_request **request, uint64_t timeout_ms, uint64_t *len);

/*
 Tests `n` requests at once. NULL ones are skipped; those that are over are freed and set to NULL, their status stored in
 `status[i]` and their length in `len[i]`; the others get `SPRAY_AGAIN`. Returns how many are over, or a negative status.

 # Safety
 Each array is NULL or has `n` elements; one thread at a time per request.
 */
int32_t spray_test_batch(struct spray_request **requests,
                         uint32_t n,
                         int32_t *status,
                         uint64_t *len);

/*
 Lets go of a request: it goes on, and nobody learns how it ends. Its memory must stay until it is released. NULL is allowed.

 # Safety
 `request` came from this library and is not used again.
 */
void spray_request_detach(struct spray_request *request);

/*
 Why the last call of this thread that failed did so: what was seen, the likely cause and the next step. Empty if none has.
 Valid until the next call of this thread.
 */
const char *spray_last_error(void);

/*
 Whether the message that the last failure of this thread was about was delivered: `SPRAY_FATE_..`. Of `spray_test_batch`, the
 last of those that failed in the call.
 */
int32_t spray_last_fate(void);

/*
 A status in a few words; never NULL.
 */
const char *spray_status_text(int32_t status);

/*
 Version of this interface: it grows with every incompatible change. Compare it with `SPRAY_ABI_VERSION`.
 */
uint32_t spray_abi_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PLANESPRAY_H */
