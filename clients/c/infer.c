/* infer SOCKET ENGINE INPUT ROWS COLUMNS [TIMES]: sends rows of 0, 1, 2 ... as float32 and prints what comes back.
 * infer SOCKET: prints which engines are served, as JSON. */
#include "trtops_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int print(const struct trtops_answer *answer) {
    if (answer->status != TRTOPS_OK) {
        printf("status %d: %.*s\n", answer->status, (int)answer->error_bytes, answer->error);
        if (answer->credit != 0)
            printf("again in %g s; until then %u at a time\n", answer->retry_after, answer->credit);
        return 2;
    }
    for (int index = 0; index < answer->tensors; index++) {
        const struct trtops_tensor *tensor = &answer->outputs[index];
        printf("%s", tensor->name);
        for (uint64_t at = 0; tensor->type == TRTOPS_FLOAT32 && at < tensor->bytes / sizeof(float); at++)
            printf(" %g", (double)((const float *)tensor->data)[at]);
        printf(" (generation %llu, batch %u)\n", (unsigned long long)answer->generation,
               answer->batch);
    }
    return 0;
}

static int list(const char *path) {
    struct trtops_client *client = NULL;
    const char *engines = "";
    int failed = trtops_open(&client, path, 1, 64, 64);
    if (failed == 0) failed = trtops_catalogue(client, 30000, &engines);
    if (failed == 0) printf("%s\n", engines);
    else fprintf(stderr, "infer: %s: %s%s\n", path, trtops_words(failed), failed == TRTOPS_E_UNANSWERED ? engines : "");
    trtops_close(client);
    return failed != 0;
}

int main(int count, char **words) {
    if (count == 2) return list(words[1]);
    if (count < 6) {
        fprintf(stderr, "usage: infer SOCKET [ENGINE INPUT ROWS COLUMNS [TIMES]]\n");
        return 64;
    }
    uint32_t rows = (uint32_t)strtoul(words[4], NULL, 10), columns = (uint32_t)strtoul(words[5], NULL, 10);
    int times = count > 6 ? atoi(words[6]) : 1, result = 0;
    struct trtops_tensor input = {.type = TRTOPS_FLOAT32, .rank = 2, .shape = {rows, columns}};
    snprintf(input.name, sizeof input.name, "%s", words[3]);
    input.bytes = (uint64_t)rows * columns * sizeof(float);
    float *values = calloc((size_t)rows * columns + 1, sizeof(float));
    struct trtops_client *client = NULL;
    if (values == NULL) return 1;
    for (uint32_t at = 0; at < rows * columns; at++) values[at] = (float)at;
    input.data = values;
    int failed = trtops_open(&client, words[1], 4, input.bytes + 64, 65536);
    for (int turn = 0; failed == 0 && turn < times; turn++) {
        struct trtops_answer answer;
        int slot = trtops_submit(client, words[2], rows, &input, 1, 0, 0);
        failed = slot < 0 ? slot : trtops_wait(client, slot, 30000, &answer);
        if (failed != 0) break;
        if (turn == times - 1) result = print(&answer);
        trtops_release(client, slot);
    }
    if (failed != 0) {
        fprintf(stderr, "infer: %s: %s\n", words[1], trtops_words(failed));
        result = 1;
    }
    trtops_close(client);
    free(values);
    return result;
}
