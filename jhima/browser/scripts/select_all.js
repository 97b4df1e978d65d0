// Selects the whole text of the field that has the focus.
() => {
  const field = document.activeElement;
  if (field?.select) field.select();
  else if (field?.isContentEditable) getSelection().selectAllChildren(field);
}
