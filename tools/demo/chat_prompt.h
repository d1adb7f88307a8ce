/*
 * A question about a text, in the form of a chat that the model was trained on: ChatML and the form of
 * Llama 3 are known by their control tokens; other models get plain text with the words Question and Answer.
 * The text comes first, so that questions about one text share its pages.
 */
#pragma once

struct document;
struct engine;
struct errmsg;

/*
 * Makes the prompt of @text and @question from the tokens of the text; control tokens that are spelt in
 * either are plain text. No BOS is added. Return: 0; -ENOMEM and errors of the tokeniser, with a sentence.
 */
int chat_prompt_make(const struct engine *en, const char *question, struct document *text, struct errmsg *e);
