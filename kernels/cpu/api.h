/* The C interface of the library: plain pointers and sizes. The caller keeps what it passes alive during a call only,
   the pools aside. Threads and their models are used by one caller at a time. */
#pragma once

#include <stdint.h>

#define CITYBUS_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct citybus_threads citybus_threads;
typedef struct citybus_llama citybus_llama;

enum citybus_status { CITYBUS_OK = 0, CITYBUS_INVALID = 1, CITYBUS_NO_MEMORY = 2, CITYBUS_NO_THREADS = 3 };

/* Instruction sets, each faster than the one before. */
enum citybus_isa { CITYBUS_NONE = 0, CITYBUS_AVX2 = 1, CITYBUS_AVX512_BF16 = 2, CITYBUS_AMX_BF16 = 3 };

enum citybus_weight {
  CITYBUS_EMBEDDING = 0,      /* [vocab_size, hidden_size]; with tied embeddings the head too */
  CITYBUS_HEAD = 1,           /* [vocab_size, hidden_size] */
  CITYBUS_LAST_NORM = 2,      /* [hidden_size] */
  CITYBUS_ATTENTION_NORM = 3, /* [hidden_size], and so on for every layer */
  CITYBUS_QUERY = 4,          /* [num_heads * head_dim, hidden_size] */
  CITYBUS_KEY = 5,            /* [num_kv_heads * head_dim, hidden_size] */
  CITYBUS_VALUE = 6,          /* the same */
  CITYBUS_ATTENTION_OUT = 7,  /* [hidden_size, num_heads * head_dim] */
  CITYBUS_MLP_NORM = 8,       /* [hidden_size] */
  CITYBUS_GATE = 9,           /* [intermediate_size, hidden_size] */
  CITYBUS_UP = 10,            /* the same */
  CITYBUS_DOWN = 11           /* [hidden_size, intermediate_size] */
};

/* head_dim must be a multiple of 16. A token of layer i sees the last windows[i] keys, its own included; 0: all. With a
   soft cap, scores become soft_cap * tanh(score / soft_cap) before softmax; 0: they do not. */
typedef struct citybus_shape {
  int64_t vocab_size, hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim;
  int64_t tied_embeddings;
  const int64_t *windows; /* [num_layers] */
  double rms_norm_eps, soft_cap;
} citybus_shape;

/* N tokens of S sequences, of which R draw. */
typedef struct citybus_step {
  int64_t num_tokens, num_sequences, num_drawing;
  const int64_t *token_ids;    /* [N] */
  const int64_t *slots;        /* [N] where a token's keys and values go */
  const float *cos, *sin;      /* [N, head_dim / 2] */
  const int64_t *block_tables; /* [S, table_width] */
  int64_t table_width;
  const int64_t *lengths;      /* [S] tokens of a sequence, the new ones, which are its last, included */
  const int64_t *query_starts; /* [S + 1] the first of its new tokens among the N, and N */
  const int64_t *drawing_rows; /* [R] tokens, of the N, whose logits are wanted; at most N */
  uint16_t *pools; /* [keys and values of each layer in turn, num_blocks, block_size * kv_heads * head_dim] */
  int64_t num_blocks, block_size; /* block_size is a multiple of 16 */
  float *logits;               /* [R, vocab_size], written where likeliest is null */
  int64_t *likeliest;          /* [R], written where it is not null: the lowest id of those with the greatest logit */
} citybus_step;

/* Of R rows of logits, how each is drawn: kernels/sample_tokens.py says what it all means. */
typedef struct citybus_draws {
  int64_t num_rows, vocab_size;
  const float *logits;            /* [R, vocab_size] */
  const double *temperatures;     /* [R], and so are the others */
  const int64_t *top_ks;
  const double *top_ps, *min_ps;
  const int64_t *seeds, *counters;
  int64_t *tokens;                /* written */
} citybus_draws;

/* Raised with every change of this file: a library that was built from an older one must not be called. */
#define CITYBUS_INTERFACE 5
CITYBUS_API int citybus_interface(void);

/* The best of enum citybus_isa that this processor and the system have. Asks the system for AMX's tiles. */
CITYBUS_API int citybus_best_isa(void);

/* `num_threads` that compute with an instruction set, the caller among them; null with `status` set where they cannot
   be had. They outlive their models. */
CITYBUS_API citybus_threads *citybus_threads_create(int isa, int num_threads, int *status);
CITYBUS_API void citybus_threads_destroy(citybus_threads *threads);

/* Draw a token from each row. */
CITYBUS_API int citybus_sample_tokens(citybus_threads *threads, const citybus_draws *draws);

/* A model without weights; null with `status` set where it cannot be made. */
CITYBUS_API citybus_llama *citybus_llama_create(const citybus_shape *shape, citybus_threads *threads, int *status);

/* Memory of the weights in bytes. */
CITYBUS_API int64_t citybus_llama_weights_bytes(const citybus_llama *llama);

/* Pack the weight `data`, bf16 row by row, which may go afterwards. `layer` counts where every layer has one. */
CITYBUS_API int citybus_llama_set_weight(citybus_llama *llama, int weight, int64_t layer, const uint16_t *data);

/* Compute a step. After an error that is not CITYBUS_INVALID the pool's contents of the step are undefined. */
CITYBUS_API int citybus_llama_forward(citybus_llama *llama, const citybus_step *step);

CITYBUS_API void citybus_llama_destroy(citybus_llama *llama);

/* Ask the system for huge pages where the pools lie. */
CITYBUS_API void citybus_prefer_huge_pages(void *start, int64_t bytes);

#ifdef __cplusplus
}
#endif
