/* A client of a trtops executor over shared memory, for C11 on Linux; little-endian machines only.
 *
 * Written from docs/concepts/transport.md alone, for versions 1 to 3 of the messages. One thread uses a client at a time. A request is copied into a slot;
 * an answer is read where it lies, until its slot is released.
 */
#ifndef TRTOPS_CLIENT_H
#define TRTOPS_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TRTOPS_MAX_TENSORS = 16, TRTOPS_MAX_RANK = 8, TRTOPS_MAX_NAME = 64 };

/* Element types. */
enum {
    TRTOPS_BOOL = 0, TRTOPS_UINT8, TRTOPS_UINT16, TRTOPS_UINT32, TRTOPS_UINT64, TRTOPS_INT8, TRTOPS_INT16,
    TRTOPS_INT32, TRTOPS_INT64, TRTOPS_FLOAT16, TRTOPS_BFLOAT16, TRTOPS_FLOAT32, TRTOPS_FLOAT64, TRTOPS_FLOAT8_E4M3
};

/* What became of a request; negative numbers are of this client. */
enum {
    TRTOPS_OK = 0, TRTOPS_WRONG = 1, TRTOPS_OVERLOADED = 2, TRTOPS_DEADLINE = 3, TRTOPS_CANCELLED = 4,
    TRTOPS_LOST = 5, TRTOPS_UNAVAILABLE = 6, TRTOPS_FAILED = 7,
    TRTOPS_E_SYSTEM = -1,   /* a system call failed: errno says why */
    TRTOPS_E_REFUSED = -2,  /* the executor refused the connection */
    TRTOPS_E_PROTOCOL = -3, /* the executor, or what listens there, speaks something else */
    TRTOPS_E_GONE = -4,     /* the executor went away: connect again */
    TRTOPS_E_FULL = -5,     /* all slots are in use */
    TRTOPS_E_ARGUMENT = -6, /* a name, a shape, a type or a size that does not fit */
    TRTOPS_E_TIMEOUT = -7,  /* no answer yet: wait again */
    TRTOPS_E_UNANSWERED = -8 /* the executor could not tell its engines; ask again later */
};

struct trtops_tensor {
    char name[TRTOPS_MAX_NAME + 1];
    int type;
    int rank;
    uint32_t shape[TRTOPS_MAX_RANK];
    const void *data; /* C-contiguous */
    uint64_t bytes;
};

struct trtops_answer {
    int status; /* TRTOPS_OK to TRTOPS_FAILED */
    uint64_t generation; /* of the engine */
    uint32_t batch;      /* rows that ran together */
    uint32_t credit;     /* with TRTOPS_OVERLOADED: requests of this engine to have in flight until retry_after; 0: any */
    double queue_us, compute_us, retry_after; /* seconds after which a retry makes sense */
    int tensors;
    struct trtops_tensor outputs[TRTOPS_MAX_TENSORS]; /* in the slot */
    const char *error; /* JSON, in the slot, not terminated; with a status other than TRTOPS_OK */
    uint64_t error_bytes;
};

struct trtops_client;

/* Connect to the socket of an executor, with so many slots. 0, or a negative number. */
int trtops_open(struct trtops_client **client, const char *path, uint32_t slots, uint64_t input_bytes,
                uint64_t output_bytes);

/* Send a request: a slot's number, or a negative number. `deadline`: of CLOCK_MONOTONIC in ns, 0: none. */
int trtops_submit(struct trtops_client *client, const char *engine, uint32_t rows, const struct trtops_tensor *inputs,
                  int count, uint64_t deadline, uint32_t priority);

/* Wait for the answer in a slot, up to `timeout_ms` (negative: for ever). 0, or a negative number. */
int trtops_wait(struct trtops_client *client, int slot, int timeout_ms, struct trtops_answer *answer);

/* The answer was read: its slot may be used again. */
void trtops_release(struct trtops_client *client, int slot);

/* Ask which engines are served, up to `timeout_ms` (negative: for ever). 0, or a negative number. `engines` is JSON,
 * ended by a 0, and this client's until the next question or its end; with TRTOPS_E_UNANSWERED it says why there are
 * none. After TRTOPS_E_TIMEOUT ask anew: a late answer is dropped. */
int trtops_catalogue(struct trtops_client *client, int timeout_ms, const char **engines);

/* Hang up. */
void trtops_close(struct trtops_client *client);

/* What a negative number means. */
const char *trtops_words(int number);

#ifdef __cplusplus
}
#endif
#endif
