#define _GNU_SOURCE
#include "trtops_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "numbers of the segment are little-endian"
#endif

enum {
    VERSION = 1,     /* of the segment */
    MESSAGES = 3,    /* version of the messages, the newest that this client speaks; it speaks all before, too */
    WATCHED = 3,     /* from here on the bell is an epoll object */
    MAX_CATALOGUE = 1 << 26,
    MAX_PACKET = 131072,
    HEADER_BYTES = 128,
    RING_HEAD = 0,
    RING_TAIL = 64,
    RING_SLEEPS = 128,
    RING_ENTRIES = 192,
    REQUEST_BYTES = 64,
    MAX_DESCRIPTION = 2176,
    ANSWER_OFFSET = 2240,
    ANSWER_BYTES = 128,
    SLOT_HEADERS = 4544,
    DESCRIPTION_BYTES = 128,
    TENSOR_BYTES = 128,
    NAME_AT = 64
};

enum { DESCRIPTORS = 3 }; /* beside a packet at most */

enum slot_state { FREE, SENT, ANSWERED };

struct ring {
    uint32_t *head, *tail, *sleeps, *entries;
    uint32_t index; /* this end's own */
};

struct trtops_client {
    int socket, their_bell, bell, gone, version;
    uint8_t *memory;
    uint64_t bytes, first, input_bytes, output_bytes, slot_bytes;
    uint32_t slots, entries;
    struct ring submit, complete;
    uint64_t sequence, asked, *sequences;
    char *catalogue; /* JSON, of the last answer */
    int answered;    /* the last question: 0 not yet, 1 with engines, a negative number if there are none */
    uint8_t *states;
};

static const uint8_t sizes[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 1};

static uint64_t aligned(uint64_t size) { return (size + 63) & ~(uint64_t)63; }

static uint32_t u32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t u64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static double f64(const uint8_t *at) {
    double value;
    memcpy(&value, at, sizeof value);
    return value;
}

static void put16(uint8_t *at, uint16_t value) { memcpy(at, &value, sizeof value); }
static void put32(uint8_t *at, uint32_t value) { memcpy(at, &value, sizeof value); }
static void put64(uint8_t *at, uint64_t value) { memcpy(at, &value, sizeof value); }

const char *trtops_words(int number) {
    switch (number) {
    case TRTOPS_E_SYSTEM: return strerror(errno);
    case TRTOPS_E_REFUSED: return "the executor refused the connection";
    case TRTOPS_E_PROTOCOL: return "what listens there speaks something else";
    case TRTOPS_E_GONE: return "the executor went away: connect again";
    case TRTOPS_E_FULL: return "all slots are in use";
    case TRTOPS_E_ARGUMENT: return "a name, a shape, a type or a size does not fit";
    case TRTOPS_E_TIMEOUT: return "no answer yet";
    case TRTOPS_E_UNANSWERED: return "the executor could not tell its engines";
    default: return "no error of the client";
    }
}

/* -- connecting -- */

static int dial(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(address.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        int kept = errno;
        close(fd);
        errno = kept;
        return -1;
    }
    return fd;
}

/* Receive a packet, which gets a 0 at its end, and the descriptors beside it: -1 where there is none. Its size; 0: the
 * executor is gone; or a negative number. */
static ssize_t receive(int socket, char *packet, int flags, int fds[DESCRIPTORS]) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(DESCRIPTORS * sizeof(int))];
    } control;
    struct iovec part = {packet, MAX_PACKET};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_LEN(DESCRIPTORS * sizeof(int))};
    for (int index = 0; index < DESCRIPTORS; index++) fds[index] = -1;
    ssize_t size;
    do {
        size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags);
    } while (size < 0 && errno == EINTR);
    if (size < 0) return TRTOPS_E_SYSTEM;
    packet[size] = 0;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head != NULL && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS)
        memcpy(fds, CMSG_DATA(head), (size_t)head->cmsg_len - CMSG_LEN(0));
    return size;
}

static void close_all(int fds[DESCRIPTORS]) {
    for (int index = 0; index < DESCRIPTORS; index++) {
        if (fds[index] >= 0) close(fds[index]);
        fds[index] = -1;
    }
}

/* A number of a message that the executor encoded: its keys stand before any text that is not its own. -1: none. */
static long long number_of(const char *packet, const char *key) {
    const char *at = strstr(packet, key);
    return at == NULL ? -1 : strtoll(at + strlen(key), NULL, 10);
}

static int says(const char *packet, const char *type) {
    return strncmp(packet, type, strlen(type)) == 0;
}

/* Receive the welcome and its three descriptors. The version of the messages, or a negative number. */
static int welcome(int socket, int fds[DESCRIPTORS]) {
    char *packet = malloc(MAX_PACKET + 1);
    if (packet == NULL) return TRTOPS_E_SYSTEM;
    ssize_t size = receive(socket, packet, 0, fds);
    int found = size < 0 ? (int)size : size == 0 ? TRTOPS_E_GONE : TRTOPS_E_REFUSED;
    if (size > 0 && says(packet, "{\"type\":\"welcome\"")) {
        long long version = number_of(packet, "\"version\":");
        found = version < 1 || version > MESSAGES || fds[2] < 0 ? TRTOPS_E_PROTOCOL : (int)version;
    }
    free(packet);
    return found;
}

static struct ring ring_at(uint8_t *memory, uint64_t offset) {
    struct ring ring = {(uint32_t *)(memory + offset + RING_HEAD), (uint32_t *)(memory + offset + RING_TAIL),
                        (uint32_t *)(memory + offset + RING_SLEEPS), (uint32_t *)(memory + offset + RING_ENTRIES), 0};
    return ring;
}

/* Map the segment and check that it is one. */
static int map(struct trtops_client *client, int fd) {
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &status) != 0 || seals < 0) return TRTOPS_E_SYSTEM;
    if ((seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) != (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ||
        status.st_size < HEADER_BYTES)
        return TRTOPS_E_PROTOCOL;
    client->bytes = (uint64_t)status.st_size;
    void *memory = mmap(NULL, client->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return TRTOPS_E_SYSTEM;
    const uint8_t *at = client->memory = memory;
    client->slots = u32(at + 24);
    client->entries = u32(at + 28);
    uint64_t submit = u64(at + 32), complete = u64(at + 40);
    client->first = u64(at + 48);
    client->input_bytes = u64(at + 56);
    client->output_bytes = u64(at + 64);
    client->slot_bytes = SLOT_HEADERS + client->input_bytes + client->output_bytes;
    uint64_t ring = aligned(RING_ENTRIES + 4 * (uint64_t)client->entries);
    if (memcmp(at, "TRTOPSHM", 8) != 0 || u32(at + 8) != VERSION || u32(at + 12) != HEADER_BYTES ||
        u64(at + 16) != client->bytes || client->slots == 0 || client->entries < client->slots ||
        (client->entries & (client->entries - 1)) != 0 || submit != HEADER_BYTES || complete != submit + ring ||
        client->first != complete + ring || client->input_bytes > client->bytes || client->output_bytes > client->bytes ||
        client->slots > client->bytes / client->slot_bytes ||
        client->first + client->slots * client->slot_bytes > client->bytes)
        return TRTOPS_E_PROTOCOL;
    client->submit = ring_at(client->memory, submit);
    client->complete = ring_at(client->memory, complete);
    client->states = calloc(client->slots, 1);
    client->sequences = calloc(client->slots, sizeof *client->sequences);
    return client->states == NULL || client->sequences == NULL ? TRTOPS_E_SYSTEM : 0;
}

int trtops_open(struct trtops_client **client, const char *path, uint32_t slots, uint64_t input_bytes,
                uint64_t output_bytes) {
    struct trtops_client *made = calloc(1, sizeof *made);
    if (made == NULL) return TRTOPS_E_SYSTEM;
    made->socket = made->bell = made->their_bell = -1;
    char hello[192];
    int length = snprintf(hello, sizeof hello,
                          "{\"type\":\"hello\",\"versions\":[1,2,3],\"slots\":%u,\"input_bytes\":%llu,\"output_bytes\":%llu}",
                          slots, (unsigned long long)input_bytes, (unsigned long long)output_bytes);
    int fds[DESCRIPTORS] = {-1, -1, -1}, result = 0;
    made->socket = dial(path);
    if (made->socket < 0 || send(made->socket, hello, (size_t)length, MSG_NOSIGNAL) != length) result = TRTOPS_E_SYSTEM;
    if (result == 0) result = welcome(made->socket, fds);
    if (result > 0) {
        made->version = result;
        made->their_bell = fds[1];
        made->bell = fds[2];
        fds[1] = fds[2] = -1;
        result = map(made, fds[0]);
    }
    int kept = errno;
    close_all(fds);
    if (result != 0) {
        trtops_close(made);
        errno = kept;
        return result;
    }
    *client = made;
    return 0;
}

void trtops_close(struct trtops_client *client) {
    if (client == NULL) return;
    if (client->memory != NULL) munmap(client->memory, client->bytes);
    if (client->socket >= 0) close(client->socket);
    if (client->bell >= 0) close(client->bell);
    if (client->their_bell >= 0) close(client->their_bell);
    free(client->states);
    free(client->sequences);
    free(client->catalogue);
    free(client);
}

/* -- requests -- */

static uint8_t *slot_at(const struct trtops_client *client, int slot) {
    return client->memory + client->first + (uint64_t)slot * client->slot_bytes;
}

/* Write a tensor's descriptor; 0 if it fits. */
static int describe(uint8_t *at, const struct trtops_tensor *tensor, uint64_t offset, uint64_t room) {
    size_t name = strnlen(tensor->name, sizeof tensor->name);
    if (name > TRTOPS_MAX_NAME || tensor->rank < 0 || tensor->rank > TRTOPS_MAX_RANK || tensor->type < 0 ||
        tensor->type >= (int)sizeof sizes)
        return TRTOPS_E_ARGUMENT;
    uint64_t bytes = sizes[tensor->type];
    for (int axis = 0; axis < tensor->rank; axis++)
        if (__builtin_mul_overflow(bytes, tensor->shape[axis], &bytes)) return TRTOPS_E_ARGUMENT;
    if (bytes != tensor->bytes || offset > room || bytes > room - offset) return TRTOPS_E_ARGUMENT;
    memset(at, 0, TENSOR_BYTES);
    put16(at, (uint16_t)name);
    at[2] = (uint8_t)tensor->type;
    at[3] = (uint8_t)tensor->rank;
    put64(at + 8, offset);
    put64(at + 16, bytes);
    for (int axis = 0; axis < tensor->rank; axis++) put32(at + 24 + 4 * axis, tensor->shape[axis]);
    memcpy(at + NAME_AT, tensor->name, name);
    return 0;
}

/* Ring a bell that may be full already: then it is rung. */
static void ring_bell(int bell) {
    uint64_t one = 1;
    ssize_t written;
    do {
        written = write(bell, &one, sizeof one);
    } while (written < 0 && errno == EINTR);
}

static void push(struct trtops_client *client, uint32_t slot) {
    struct ring *ring = &client->submit;
    __atomic_store_n(&ring->entries[ring->index & (client->entries - 1)], slot, __ATOMIC_RELAXED);
    __atomic_store_n(ring->tail, ++ring->index, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(ring->sleeps, __ATOMIC_RELAXED) != 0) ring_bell(client->their_bell);
}

int trtops_submit(struct trtops_client *client, const char *engine, uint32_t rows, const struct trtops_tensor *inputs,
                  int count, uint64_t deadline, uint32_t priority) {
    if (client->gone) return TRTOPS_E_GONE;
    uint32_t slot = 0;
    while (slot < client->slots && client->states[slot] != FREE) slot++;
    if (slot == client->slots) return TRTOPS_E_FULL;
    size_t name = strlen(engine);
    if (name > TRTOPS_MAX_NAME || count < 0 || count > TRTOPS_MAX_TENSORS) return TRTOPS_E_ARGUMENT;
    uint8_t *request = slot_at(client, (int)slot), *text = request + REQUEST_BYTES, *area = request + SLOT_HEADERS;
    memset(text, 0, DESCRIPTION_BYTES);
    put32(text, rows);
    put16(text + 4, (uint16_t)count);
    put16(text + 6, (uint16_t)name);
    memcpy(text + NAME_AT, engine, name);
    uint64_t offset = 0;
    for (int index = 0; index < count; index++) {
        int result = describe(text + DESCRIPTION_BYTES + index * TENSOR_BYTES, &inputs[index], offset, client->input_bytes);
        if (result != 0) return result;
        if (inputs[index].bytes != 0) memcpy(area + offset, inputs[index].data, inputs[index].bytes);
        offset = aligned(offset + inputs[index].bytes);
    }
    client->sequences[slot] = ++client->sequence;
    put64(request, client->sequence);
    put64(request + 8, deadline);
    put32(request + 16, priority);
    put32(request + 20, (uint32_t)(DESCRIPTION_BYTES + count * TENSOR_BYTES));
    client->states[slot] = SENT;
    push(client, slot);
    return (int)slot;
}

/* Note which slots have answers. */
static void take(struct trtops_client *client) {
    struct ring *ring = &client->complete;
    uint32_t tail = __atomic_load_n(ring->tail, __ATOMIC_ACQUIRE);
    while (ring->index != tail) {
        uint32_t slot = __atomic_load_n(&ring->entries[ring->index & (client->entries - 1)], __ATOMIC_RELAXED);
        if (slot < client->slots && client->states[slot] == SENT) client->states[slot] = ANSWERED;
        __atomic_store_n(ring->head, ++ring->index, __ATOMIC_RELEASE);
    }
}

/* Read the descriptions of the outputs. */
static int read_outputs(const struct trtops_client *client, const uint8_t *slot, uint32_t size, struct trtops_answer *answer) {
    const uint8_t *text = slot + ANSWER_OFFSET + ANSWER_BYTES;
    const uint8_t *area = slot + SLOT_HEADERS + client->input_bytes;
    uint32_t count = size < DESCRIPTION_BYTES ? TRTOPS_MAX_TENSORS + 1u : (u32(text + 4) & 0xffff);
    if (count > TRTOPS_MAX_TENSORS || size != DESCRIPTION_BYTES + count * TENSOR_BYTES) return TRTOPS_E_PROTOCOL;
    answer->tensors = (int)count;
    for (uint32_t index = 0; index < count; index++) {
        const uint8_t *at = text + DESCRIPTION_BYTES + index * TENSOR_BYTES;
        struct trtops_tensor *tensor = &answer->outputs[index];
        uint32_t name = u32(at) & 0xffff;
        uint64_t offset = u64(at + 8);
        tensor->type = at[2];
        tensor->rank = at[3];
        tensor->bytes = u64(at + 16);
        if (name > TRTOPS_MAX_NAME || tensor->rank > TRTOPS_MAX_RANK || offset > client->output_bytes ||
            tensor->bytes > client->output_bytes - offset)
            return TRTOPS_E_PROTOCOL;
        memcpy(tensor->name, at + NAME_AT, name);
        tensor->name[name] = 0;
        for (int axis = 0; axis < tensor->rank; axis++) tensor->shape[axis] = u32(at + 24 + 4 * axis);
        tensor->data = area + offset;
    }
    return 0;
}

static int read_answer(const struct trtops_client *client, int slot, struct trtops_answer *answer) {
    const uint8_t *at = slot_at(client, slot) + ANSWER_OFFSET;
    uint32_t size = u32(at + 12);
    memset(answer, 0, sizeof *answer);
    if (u64(at) != client->sequences[slot]) return TRTOPS_E_PROTOCOL;
    answer->status = (int)u32(at + 8);
    answer->generation = u64(at + 16);
    answer->batch = u32(at + 24);
    answer->credit = u32(at + 28);
    answer->queue_us = f64(at + 32);
    answer->compute_us = f64(at + 40);
    answer->retry_after = f64(at + 48);
    if (answer->status == TRTOPS_OK) return read_outputs(client, slot_at(client, slot), size, answer);
    answer->error = (const char *)slot_at(client, slot) + SLOT_HEADERS + client->input_bytes;
    answer->error_bytes = size < client->output_bytes ? size : client->output_bytes;
    return 0;
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* -- off the data path -- */

/* Copy a list of engines out of the memory beside a message; NULL: it is not what it should be. */
static char *copied(int fd, long long size) {
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    int wanted = F_SEAL_SHRINK | F_SEAL_WRITE;
    if (seals < 0 || (seals & wanted) != wanted || fstat(fd, &status) != 0 || size > status.st_size) return NULL;
    char *text = malloc((size_t)size + 1);
    if (text == NULL) return NULL;
    if (pread(fd, text, (size_t)size, 0) != size) {
        free(text);
        return NULL;
    }
    text[size] = 0;
    return text;
}

/* Keep what a catalogue says: JSON of engines, or of why there are none. 0, or a negative number. */
static int keep(struct trtops_client *client, char *packet, size_t length, const int fds[DESCRIPTORS]) {
    static const char engines[] = "\"engines\":";
    char *at = strstr(packet, engines), *text;
    if (at == NULL || number_of(packet, "\"number\":") != (long long)client->asked) return 0; /* of an earlier question */
    at += sizeof engines - 1;
    int found = 0;
    if (says(at, "null,\"size\":")) {
        long long size = number_of(at, "\"size\":");
        if (fds[0] < 0 || size <= 0 || size > MAX_CATALOGUE) return TRTOPS_E_PROTOCOL;
        text = copied(fds[0], size);
    } else {
        static const char problem[] = "null,\"problem\":";
        if (says(at, problem)) {
            at += sizeof problem - 1;
            found = TRTOPS_E_UNANSWERED;
        }
        packet[length - 1] = 0; /* the message's own brace */
        text = strdup(at);
    }
    if (text == NULL) return TRTOPS_E_PROTOCOL;
    free(client->catalogue);
    client->catalogue = text;
    client->answered = found == 0 ? 1 : found;
    return 0;
}

/* Read a packet: a list of engines that was asked for; a refusal, after which the executor hangs up; or its end. */
static int listen_to(struct trtops_client *client) {
    int fds[DESCRIPTORS], result = 0;
    char *packet = malloc(MAX_PACKET + 1);
    if (packet == NULL) return TRTOPS_E_SYSTEM;
    ssize_t size = receive(client->socket, packet, MSG_DONTWAIT, fds);
    if (size > 0 && says(packet, "{\"type\":\"catalogue\"")) result = keep(client, packet, (size_t)size, fds);
    else if (size == 0 || (size < 0 && errno != EAGAIN && errno != ECONNRESET)) client->gone = 1;
    close_all(fds);
    free(packet);
    return result;
}

int trtops_catalogue(struct trtops_client *client, int timeout_ms, const char **engines) {
    char ask[64];
    int length = snprintf(ask, sizeof ask, "{\"type\":\"ask\",\"number\":%llu}", (unsigned long long)++client->asked);
    if (client->gone) return TRTOPS_E_GONE;
    client->answered = 0;
    if (send(client->socket, ask, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT) != length)
        return errno == EAGAIN ? TRTOPS_E_TIMEOUT : errno == EPIPE ? TRTOPS_E_GONE : TRTOPS_E_SYSTEM;
    int64_t end = now_ms() + timeout_ms;
    while (client->answered == 0) {
        if (client->gone) return TRTOPS_E_GONE;
        int64_t left = timeout_ms < 0 ? -1 : end - now_ms();
        if (timeout_ms >= 0 && left <= 0) return TRTOPS_E_TIMEOUT;
        struct pollfd watched = {client->socket, POLLIN, 0};
        int ready = poll(&watched, 1, (int)left);
        if (ready < 0 && errno != EINTR) return TRTOPS_E_SYSTEM;
        int result = ready > 0 ? listen_to(client) : 0;
        if (result != 0) return result;
    }
    *engines = client->catalogue;
    return client->answered < 0 ? client->answered : 0;
}

/* Take note of a ring, so that the bell tells of the next one. 0, or a negative number. */
static int hear(const struct trtops_client *client) {
    uint64_t rings;
    struct epoll_event event;
    ssize_t heard = client->version >= WATCHED ? epoll_wait(client->bell, &event, 1, 0)
                                               : read(client->bell, &rings, sizeof rings);
    return heard < 0 && errno != EAGAIN && errno != EINTR ? TRTOPS_E_SYSTEM : 0;
}

/* Sleep until the bell rings or the socket has something. 0, or a negative number. */
static int nap(struct trtops_client *client, int timeout_ms) {
    struct pollfd watched[2] = {{client->bell, POLLIN, 0}, {client->socket, POLLIN, 0}};
    int ready = poll(watched, 2, timeout_ms);
    if (ready < 0) return errno == EINTR ? 0 : TRTOPS_E_SYSTEM;
    if ((watched[0].revents & POLLIN) && hear(client) != 0) return TRTOPS_E_SYSTEM;
    return watched[1].revents != 0 ? listen_to(client) : 0;
}

int trtops_wait(struct trtops_client *client, int slot, int timeout_ms, struct trtops_answer *answer) {
    if (slot < 0 || (uint32_t)slot >= client->slots || client->states[slot] == FREE) return TRTOPS_E_ARGUMENT;
    int64_t end = now_ms() + timeout_ms;
    for (;;) {
        take(client);
        if (client->states[slot] == ANSWERED) return read_answer(client, slot, answer);
        if (client->gone) return TRTOPS_E_GONE;
        int64_t left = timeout_ms < 0 ? -1 : end - now_ms();
        if (timeout_ms >= 0 && left <= 0) return TRTOPS_E_TIMEOUT;
        __atomic_store_n(client->complete.sleeps, 1, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        int result = 0;
        if (__atomic_load_n(client->complete.tail, __ATOMIC_RELAXED) == client->complete.index)
            result = nap(client, (int)left);
        __atomic_store_n(client->complete.sleeps, 0, __ATOMIC_RELAXED);
        if (result != 0) return result;
    }
}

void trtops_release(struct trtops_client *client, int slot) {
    if (slot >= 0 && (uint32_t)slot < client->slots && client->states[slot] == ANSWERED) client->states[slot] = FREE;
}
